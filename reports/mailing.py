"""Mails of scheduled reports: one for each recipient, tried again with growing pauses. Only mail is tried again."""

import hashlib
import logging
import smtplib
from collections.abc import Sequence
from datetime import datetime, timedelta
from email.encoders import encode_base64
from email.mime.base import MIMEBase
from email.utils import parseaddr
from typing import Any, Final, cast

from django.conf import settings
from django.core.mail import EmailMessage, get_connection
from django.db.models import F
from django.urls import reverse

from reports.catalogue import REPORTS
from reports.exports import FORMATS, Format
from reports.figures import size
from reports.scheduled_models import ERROR_LENGTH, ReportFile, ReportRun

log = logging.getLogger("pilotage.reports")

PAUSES: Final = (60, 300, 900, 3600)
"""Seconds after each try; the last counts for all further ones."""
PERMANENT: Final = 500
"""From this code on a mail server means: do not try again."""

Problem = OSError | smtplib.SMTPException


def mail(run_id: int, *, now: datetime) -> None:
    """Sends what is due of a run's mail. A worker that is killed between the mail server's yes and the row written after
    it has that one mail sent twice, with one Message-ID."""
    due = ReportRun.objects.filter(pk=run_id, state="mailing", mail_next_at__lte=now)
    lease = now + timedelta(seconds=settings.PILOTAGE.task_hard_seconds)
    if not due.update(mail_next_at=lease, mail_tries=F("mail_tries") + 1):
        return
    run = ReportRun.objects.select_related("definition").get(pk=run_id)
    files = list(run.files.all())
    later: dict[str, str] = {}
    connection = get_connection()
    try:
        connection.open()
        for address in list(run.mail_to):
            message = message_for(run, files, address)
            message.connection = connection
            try:
                message.send()
            except (OSError, smtplib.SMTPException) as problem:
                code, words = _reason(problem)
                (run.mail_refused if code >= PERMANENT else later)[address] = words
            else:
                run.mailed_to.append(address)
            run.mail_to = [each for each in run.mail_to if each not in run.mailed_to and each not in run.mail_refused]
            run.save(update_fields=["mail_to", "mailed_to", "mail_refused"])
    except (OSError, smtplib.SMTPException) as problem:
        later = dict.fromkeys(run.mail_to, _reason(problem)[1])
    finally:
        connection.close()
    _settle(run, later, now)


def mail_again(run: ReportRun, *, now: datetime) -> None:
    """By hand: to whoever has not got it."""
    left = [*run.mail_to, *run.mail_refused]
    ReportRun.objects.filter(pk=run.pk, state="mail_failed").update(
        state="mailing", mail_to=left, mail_refused={}, mail_tries=0, mail_next_at=now, finished_at=None, error=""
    )


def message_for(run: ReportRun, files: Sequence[ReportFile], address: str) -> EmailMessage:
    """Files are attached up to PILOTAGE_REPORT_MAIL_BYTES in all; beyond it the mail says where they are."""
    definition = run.definition
    days = f"{run.first_day}" if run.first_day == run.last_day else f"{run.first_day} to {run.last_day}"
    entry = REPORTS.get(definition.report)
    attached = sum(file.size for file in files) <= settings.PILOTAGE.report_mail_bytes
    where = reverse("admin:reports_reportrun_change", args=[run.pk])
    base = settings.PILOTAGE.public_url
    lines = [
        f"{entry.title if entry else definition.report}, {days}, {definition.zone}.",
        "",
        "Attached:" if attached else "The files are too large for a mail. They are kept at the address below:",
        *(f"- {file.name}, {size(file.size)}" for file in files),
        "",
        f"{base.rstrip('/')}{where}" if base else f"In the admin, at {where}",
        "",
    ]
    message = EmailMessage(
        subject=f"{definition.name}: {days}",
        body="\n".join(lines),
        to=[address],
        headers={"Message-ID": _message_id(run, address), "Auto-Submitted": "auto-generated"},
    )
    for file in files if attached else ():
        message.attach(_attachment(file))
    return message


def _attachment(file: ReportFile) -> MIMEBase:
    """Byte for byte: as text, mail would end its lines otherwise."""
    kind, subkind = FORMATS[cast(Format, file.format)].partition(";")[0].split("/")
    part = MIMEBase(kind, subkind, charset="utf-8")
    part.set_payload(bytes(file.data))
    encode_base64(part)
    part.add_header("Content-Disposition", "attachment", filename=file.name)
    return part


def _settle(run: ReportRun, later: dict[str, str], now: datetime) -> None:
    tried_enough = run.mail_tries >= settings.PILOTAGE.report_mail_tries
    problems = "\n".join(f"{address}: {words}" for address, words in {**run.mail_refused, **later}.items())
    values: dict[str, Any] = {"error": problems[:ERROR_LENGTH]}
    if later and not tried_enough:
        pause = PAUSES[min(run.mail_tries, len(PAUSES)) - 1]
        values |= {"mail_next_at": now + timedelta(seconds=pause)}
    else:
        state = "mail_failed" if problems else "done"
        values |= {"state": state, "mail_next_at": None, "finished_at": now}
        if problems:
            log.error(
                "the report %s was not mailed to everybody", run, extra={"addresses": len(run.mail_refused | later)}
            )
    ReportRun.objects.filter(pk=run.pk, state="mailing", mail_tries=run.mail_tries).update(**values)


def _reason(problem: Problem) -> tuple[int, str]:
    """The mail server's code, or 0, and what went wrong. Who is refused at the greeting or the login may be let in later."""
    match problem:
        case smtplib.SMTPRecipientsRefused(recipients=recipients):
            code, text = next(iter(recipients.values()))
        case smtplib.SMTPSenderRefused() | smtplib.SMTPDataError():
            code, said = problem.smtp_code, problem.smtp_error
            text = said if isinstance(said, bytes) else said.encode()
        case _:
            return 0, f"{type(problem).__name__}: {problem}"
    return code, f"{code} {text.decode(errors='replace')}"


def _message_id(run: ReportRun, address: str) -> str:
    """The same with every try."""
    domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2]
    whose = f"{run.pk}/{run.queued_at.isoformat()}/{address}"
    return f"<{hashlib.sha256(whose.encode()).hexdigest()[:32]}@{domain}>"
