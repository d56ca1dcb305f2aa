"""Breaks one guard after the other in a copy of the tree and runs the tests that should notice.

    python -m tests.faults.mutations                 all; half an hour
    python -m tests.faults.mutations --only surplus  those whose name has this in it

Prints for each whether it was noticed; ends with 1 when one was not, or can no longer be made. `README.md` lists them.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TREE = ("accounts", "gateway", "reports", "routing", "tests", "docs", "manage.py", "pyproject.toml", "README.md")


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    """The guard that it breaks, as the README calls it."""
    file: str
    old: str
    """Occurs once."""
    new: str
    tests: str
    """Arguments of pytest, below `tests/faults` where no other path is given."""


CONNECTION = "gateway/upstream/connection.py"
HTTP1 = "gateway/upstream/http1_connection.py"
POOL = "gateway/upstream/pool.py"
DECODING = "gateway/upstream/decoding.py"
EXCHANGE = "gateway/relay/exchange.py"
STREAM = "gateway/relay/stream.py"
ATTEMPT = "gateway/relay/attempt.py"
SSE = "gateway/dialects/sse.py"
STREAMS = "gateway/dialects/streams.py"
JSONBYTES = "gateway/dialects/jsonbytes.py"
OBSERVATIONS = "routing/core/observations.py"
MEMORY = "routing/core/memory.py"
THRESHOLDS = "routing/core/thresholds.py"
DECIDE = "routing/core/decide.py"

MUTATIONS = [
    # Connecting.
    Mutation(
        "the address is judged, not the name",
        "gateway/upstream/dialing.py",
        "return parsed.is_loopback if self._loopback_allowed else is_public(parsed)",
        "return True",
        "test_connecting.py -k leads_inside",
    ),
    Mutation(
        "TLS is verified",
        "gateway/upstream/dialing.py",
        "    context = ssl.create_default_context(cafile=ca_file)\n",
        "    context = ssl.create_default_context(cafile=ca_file)\n"
        "    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE\n",
        "test_connecting.py -k handshake",
    ),
    # Heads.
    Mutation(
        "only 200 is an answer (unary)",
        EXCHANGE,
        "                if response.status != 200:\n                    raise await failure_answered(response, by=by, wall=",
        "                if response.status >= 400:\n                    raise await failure_answered(response, by=by, wall=",
        "test_heads.py -k 'with_an_answer or redirect or 201 or 206'",
    ),
    Mutation(
        "only 200 is an answer (stream)",
        EXCHANGE,
        "if response.status != 200:\n                    raise await failure_answered(response, by=content_by",
        "if response.status >= 400:\n                    raise await failure_answered(response, by=content_by",
        "test_heads.py -k redirect",
    ),
    Mutation(
        "interim answers are counted",
        CONNECTION,
        "        if self._interim > self._bounds.max_interim:",
        "        if False:",
        "test_heads.py -k interim",
    ),
    Mutation(
        "a head has a bound",
        CONNECTION,
        "            if len(data) > room:\n",
        "            if False:\n",
        "test_heads.py -k 'header or head_without or reason'",
    ),
    Mutation(
        "a status counts also without its body",
        ATTEMPT,
        "    except UpstreamError:\n        body = b\"\"\n",
        "    except ZeroDivisionError:\n        body = b\"\"\n",
        "test_heads.py -k cannot_be_read",
    ),
    Mutation(
        "an error's code may be of any type",
        ATTEMPT,
        '    said = (error.get("code"), error.get("type"))\n',
        '    said = {error.get("code"), error.get("type")}\n',
        "test_heads.py -k any_build",
    ),
    Mutation(
        "a stream that says it is JSON or HTML is none",
        EXCHANGE,
        'if name == b"content-type" and (b"json" in value.lower() or b"html" in value.lower()):',
        "if False:",
        "test_header_oddities.py -k says_it_is_none",
    ),
    Mutation(
        "a transfer coding other than chunked is refused",
        HTTP1,
        'if self._has_transfer_encoding or value.strip().lower() != b"chunked":',
        "if False:",
        "test_header_oddities.py -k forbidden",
    ),
    Mutation(
        "only HTTP/1.0 and 1.1 are read",
        HTTP1,
        'if version != "1.1" and (version != "1.0" or self._has_transfer_encoding):',
        "if False:",
        "test_header_oddities.py test_heads.py -k 'forbidden or broken_head'",
    ),
    # Framing.
    Mutation(
        "a body that ends early is no body",
        CONNECTION,
        "elif response.status and response.complete_by_eof and exc is None:",
        "elif response.status:",
        "test_framing.py",
    ),
    Mutation(
        "a malformed chunk ends the answer in an error",
        HTTP1,
        "                self.fail(self._fault or ProtocolError(f\"the response is not HTTP/1.1: {error}\"))\n",
        "                self._finish(response, surplus=True)\n",
        "test_framing.py -k 'unary or after_its_content'",
    ),
    Mutation(
        "after the commit point no other target is asked",
        STREAM,
        "        if self.committed:\n            return StreamBroken(failure, code)\n",
        "",
        "test_framing.py -k after_its_content",
    ),
    Mutation(
        "a broken stream ends in an error event",
        EXCHANGE,
        "        await self.downstream.fail(code=broken.code, message=str(broken), request_id=self.id)\n",
        "",
        "test_framing.py -k after_its_content",
    ),
    Mutation(
        "a stream is whole once its terminal event has come",
        STREAM,
        "            except UpstreamError as error:\n                if reader.terminal:",
        "            except UpstreamError as error:\n                if False:",
        "test_framing.py -k after_its_terminal",
    ),
    Mutation(
        "half an event is dropped before an error event",
        STREAMS,
        "        except MalformedAnswer:\n            return []\n",
        '        except MalformedAnswer:\n            kind = "opening"\n',
        "test_framing.py -k half_an_event",
    ),
    Mutation(
        "a failed attempt counts as a fallback",
        EXCHANGE,
        "                relay.observations.fell_back(previous)\n",
        "                pass\n",
        "test_framing.py -k other_target",
    ),
    # Codings.
    Mutation("a compressed answer is decoded", DECODING, "return _Decoded(response, codings) if codings else response", "return response", "test_encodings.py"),
    Mutation("an unknown coding is refused", DECODING, "            raise EncodingError(\"a content coding that is not known here, or several\")\n", "            return await self._response.receive(by=by)\n", "test_encodings.py -k cannot_be_decoded"),
    Mutation("a decoded body has the limit of an answer", DECODING, "            if size > limit:\n", "            if False:\n", "test_encodings.py -k bomb"),
    Mutation("a compressed body that is cut is none", DECODING, "            elif decoder.is_whole:\n", "            elif True:\n", "test_encodings.py -k cut_gives_way"),
    Mutation("what comes behind a compressed body is no part of it", DECODING, "        if not self._gzip or self._fruitless > _FRUITLESS_MEMBERS:\n", "        if False:\n", "test_encodings.py -k cannot_be_decoded"),
    Mutation("decoded pieces come as they are flushed", DECODING, "            if decoded:\n                self._since_turn", "            if len(decoded) > 400:\n                self._since_turn", "test_encodings.py -k flushed"),
    # Sizes.
    Mutation("an event has a bound while it grows", SSE, "        if len(self.held) > self.limit:\n            self.overflow = True", "", "test_sizes.py -k event_without_end"),
    Mutation("an event has a bound when it ends", SSE, "            if end - start > self.limit:\n", "            if False:\n", "test_sizes.py -k mebibyte"),
    Mutation("a unary body has a bound", CONNECTION, "        if self._buffered > limit:\n            self.close()\n", "        if self._buffered > limit * 1_000:\n            self.close()\n", "test_sizes.py -k 'unary_body'"),
    Mutation("a body over its bound by its length is not taken in", CONNECTION, "if self.content_length is not None and self.content_length > limit:", "if False:", "../gateway/upstream/test_backpressure.py -k by_its_length"),
    Mutation("reading pauses for a slow client", CONNECTION, "            if response.is_ahead and not self._read_paused:\n", "            if False:\n", "test_sizes.py ../gateway/upstream/test_backpressure.py -k 'without_end_flows or flood'"),
    Mutation("openings are held back only so long", STREAM, "            if self._held_bytes > MAX_HELD_BYTES:\n", "            if False:\n", "test_sizes.py -k openings_without_end"),
    Mutation("nothing comes behind the end marker", STREAM, '            if kind == "done":\n                break', '            if kind == "done":\n                pass', "test_sizes.py -k end_marker"),
    # Deadlines.
    Mutation("a head has to come in time", CONNECTION, "            if not await self.news(response, by):\n                self.fail(ResponseTimeout(\"no response head came in time\"))", "            await self.news(response, by + 5.0)", "test_deadlines.py -k total_limit"),
    Mutation("a body has to come in time", CONNECTION, "                if not await connection.news(self, by):\n                    raise ResponseTimeout(\"the body did not end", "                if not await connection.news(self, by + 5.0):\n                    raise ResponseTimeout(\"the body did not end", "test_deadlines.py -k total_limit"),
    Mutation("content has to come in time", STREAM, "        elif self._content_by < by and not self._downstream.committed:\n", "        elif False:\n", "test_deadlines.py -k first_content"),
    Mutation("a stream may not fall silent", STREAM, "        by = now + self._idle_s\n", "        by = now + self._idle_s + 5.0\n", "test_deadlines.py -k idle_limit"),
    Mutation("an error's body is not waited for", ATTEMPT, "        by = min(by, asyncio.get_running_loop().time() + MAX_ERROR_SECONDS)\n", "", "test_deadlines.py -k body_of_an_error"),
    Mutation("the group's deadline ends the trying", EXCHANGE, "                if self.loop.time() > deadline - LEAST_ATTEMPT_SECONDS:\n", "                if False:\n", "test_deadlines.py -k groups_deadline"),
    # Connections kept.
    Mutation("a connection with surplus bytes is not used again", CONNECTION, "            and not surplus\n", "", "test_desync.py"),
    Mutation("line breaks behind an answer are surplus", HTTP1, "            surplus = surplus or self._has_surplus(response, data)\n", "", "test_desync.py ../gateway/upstream/test_response.py -k 'reaches_no_other or well_formed'"),
    Mutation("a socket is looked at before it is used again", CONNECTION, "return not (self.closed or self._poll.poll(0))", "return not self.closed", "test_desync.py ../gateway/upstream/test_pool.py"),
    Mutation("bytes on an idle connection close it", HTTP1, "    def _feed_idle(self, data: bytes) -> None:\n        self.close()\n", "    def _feed_idle(self, data: bytes) -> None:\n        pass\n", "test_desync.py ../gateway/upstream/test_pool.py ../gateway/upstream/test_response.py"),
    Mutation("a cancelled call closes its connection", CONNECTION, "                self._waiter = None\n            response.close()\n            raise\n", "                self._waiter = None\n            raise\n", "test_churn.py"),
    Mutation("a place is given back once the exchange is over", POOL, "        self._lent.discard(connection)\n        if not reusable:\n", "        if not reusable:\n", "test_churn.py"),
    # Storms.
    Mutation("second attempts have a budget", ATTEMPT, "        if self._tokens < 1.0:\n            return False\n", "", "test_storms.py ../gateway/relay/test_failover.py -k 'under_way or budget'"),
    Mutation("a model that began to rest meanwhile is passed over", EXCHANGE, "                if relay.observations.cooling_until(target.model_key, now=now) is not None:\n                    continue\n", "", "test_storms.py -k meanwhile"),
    Mutation("a resting model is no candidate", DECIDE, "    if not full and not cooling and not plan.bounded:\n", "    cooling = []\n    if True:\n", "test_storms.py -k storm"),
    Mutation("a rest is never shortened", OBSERVATIONS, "        if until <= self._cooling.get(target.model_key, -inf):\n            return\n", "", "test_storms.py -k shortened"),
    Mutation("a rest has a longest time", OBSERVATIONS, "        until = now + min(wait, policy.cool_down_max_s)\n", "        until = now + wait\n", "test_storms.py -k any_form"),
    Mutation("a date is counted from the answer's own", ATTEMPT, '            wall = _instant(value) or wall\n', "            pass\n", "test_storms.py -k any_form"),
    Mutation("the wait that is told is rounded up, and at least a second", "gateway/relay/refusals.py", "max(1, ceil(self.retry_after_s))", "int(self.retry_after_s)", "test_storms.py -k 'any_form or own_wait'"),
    # A dead target.
    Mutation("failures in a row keep a target out", MEMORY, "            self._count_failure(running, outcome, now, terminal)\n        if current", "            pass\n        if current", "test_ejection.py"),
    Mutation("one trial at a time", THRESHOLDS, "        due = not self.probing and now >= self.probe_at\n", "        due = now >= self.probe_at\n", "test_ejection.py -k one_trial"),
    Mutation("a failed trial puts the next one off", THRESHOLDS, "                self.probe_at = now + self._wait_s\n            case \"none\":", "            case \"none\":", "test_ejection.py"),
    Mutation("with all out the least bad serves", DECIDE, '    panic = not survivors and bool(sick) and group.score.thresholds.when_all_excluded == "least_bad"\n', "    panic = False\n", "test_ejection.py -k all_targets_out"),
    # Callers.
    Mutation("a pin is its caller's", "routing/core/affinity.py", "    for word in (caller, group, dialect):\n", "    for word in (group, dialect):\n", "test_isolation.py -k own_pins"),
    Mutation("a caller's fault is not the target's", MEMORY, '        if outcome == "caller_fault" or outcome == "refused_here":\n', '        if outcome == "refused_here":\n', "test_isolation.py test_heads.py -k 'faults or callers_fault'"),
    Mutation("a client that leaves after content blames nobody", MEMORY, "            bad = self._blames_target(running, now)\n", "            bad = True\n", "test_isolation.py"),
    # Events.
    Mutation("data that is no JSON is a fault", STREAMS, "            raise MalformedAnswer(str(error), events=events) from error\n", "            return events\n", "test_sse_framing.py -k no_json"),
    Mutation("a carriage return ends a line", SSE, "        if not self._carriage_returns and b\"\\r\" in data:\n", "        if False:\n", "test_sse_framing.py -k 'written or cut_at'"),
    Mutation("a byte order mark at the start is no part of an event", SSE, "            raw = raw.removeprefix(_BOM)\n", "            pass\n", "test_sse_framing.py -k 'written or cut_at'"),
    Mutation("white space before an event's JSON means nothing", "gateway/dialects/openai_chat.py", "            payload = payload.lstrip(SPACE)\n", "", "test_sse_framing.py -k written"),
    Mutation("an error event before the content is a failed attempt", STREAM, "            if reader.error is not None:\n", "            if False:\n", "test_sse_framing.py -k error_event"),
    Mutation("an error event behind CR lines stands alone", SSE, r'''_EVENT_END = re.compile(rb"\n\n|\r\r|\n\r(?:\n|(?=[^\n]))")''', r'''_EVENT_END = re.compile(rb"\n\n|\n\r(?:\n|(?=[^\n]))")''', "test_sse_framing.py"),
    # JSON.
    Mutation("an escaped name is a name", JSONBYTES, ''' and b"\\\\u006" not in body:''', ":", "test_json_values.py -k one_model"),
    Mutation("a body is read strictly", JSONBYTES, "        return _as_object(_ANY.decode(body))\n", "        return _as_object(json.loads(body))\n", "test_json_values.py -k forbids"),
    Mutation("a large body is read strictly", JSONBYTES, "            yield\n        return _ANY.decode(raw)\n", "            yield\n        return json.loads(raw)\n", "test_json_values.py -k forbids"),
    Mutation("too deep nesting is a refusal", JSONBYTES, "        return _as_object(_ANY.decode(body))\n    except (msgspec.DecodeError, RecursionError) as error:", "        return _as_object(_ANY.decode(body))\n    except msgspec.DecodeError as error:", "test_json_values.py -k forbids"),
    # Large bodies.
    Mutation("large bodies are decoded in steps", EXCHANGE, "            if len(body) <= STEPWISE_BYTES:\n", "            if True:\n", "../gateway/relay/test_requests.py -k in_steps"),
    Mutation("what is hashed of a beginning has a bound", "gateway/dialects/conversation.py", "        if room < 0:\n            break\n    return room\n", "    return room\n", "test_large_bodies.py ../gateway/dialects/test_conversation.py -k 'streams_go_on or many_megabytes'"),
    Mutation("messages behind that bound are not hashed", "gateway/dialects/conversation.py", "        if room < 0:\n            break\n        role", "        role", "../gateway/dialects/test_conversation.py -k many_megabytes"),
    Mutation("a target may take fewer bytes", "routing/core/eligibility.py", "if target.max_request_bytes is not None and shape.request_bytes > target.max_request_bytes:", "if False:", "test_large_bodies.py -k fewer_bytes"),
    Mutation("events go on one by one", STREAM, "            if out:\n                await self._write(out)\n", "            if out and not reader.terminal:\n                held.append(out)\n            elif out:\n                await self._write(out)\n", "test_middleware.py"),
    # Revisions and clocks.
    Mutation("an exchange keeps the revision that it began with", "gateway/relay/recording.py", "        exchange.catalog.revision if exchange.catalog else 0,\n", "        exchange.relay.snapshot.catalog.revision,\n", "test_publishing_under_load.py"),
    Mutation("a changed provider is followed", "gateway/upstream/pooled.py", "        if pool is None or pool.provider is not provider:\n", "        if pool is None:\n", "test_publishing_under_load.py"),
    Mutation("decisions are made on the monotonic clock", EXCHANGE, "        self.now = now = relay.clock()\n", "        self.now = now = relay.wall()\n", "test_clock_jumps.py"),
    Mutation("a rest runs on the monotonic clock", EXCHANGE, "            now = relay.clock()\n            downstream = self.downstream\n", "            now = relay.wall()\n            downstream = self.downstream\n", "test_clock_jumps.py"),
    # Readers.
    Mutation("the end of an event is found across pieces", SSE, "        self._looked = max(0, len(self.held) - 2)\n", "        self._looked = len(self.held)\n", "test_fuzz.py -k sse"),
    Mutation("a name that stands twice is seen", JSONBYTES, "    if members and (not closed or body[at:].strip(SPACE)):\n        return None\n", "", "test_fuzz.py test_json_values.py ../gateway/dialects/test_jsonbytes.py"),
    Mutation("nesting in YAML has a bound", "gateway/strict_yaml.py", "    except _Stop as stop:\n        builder.parsed.problems.append(stop.problem)\n", "", "test_fuzz.py ../gateway/test_config.py -k 'yaml or plain_data or raise'"),
    Mutation("the weights of a difference have their sign", "routing/core/expressions.py", 'constant, weights = second if operator == "+" else _scaled(second, -1.0)', 'constant, weights = second', "test_fuzz.py ../routing/test_expressions.py"),
    Mutation("an interim answer is no answer", HTTP1, "        if status < 200:\n", "        if status < 100:\n", "test_fuzz.py test_heads.py -k 'http1 or interim'"),
    # Requests that come at once.
    Mutation("an intent is written before its provider hears of it", EXCHANGE, "            relay.spool.flush()", "            pass", "../gateway/relay/test_company.py ../gateway/relay/test_recording.py"),
    Mutation("a choice sees the attempts of those that came with it", EXCHANGE, "            self.serving = target\n", "            self.serving = target\n            await asyncio.sleep(0)\n", "../gateway/relay/test_company.py"),
    Mutation("who leaves between two steps ends its attempt", EXCHANGE, "        try:\n            if self.in_company:\n                await asyncio.sleep(0)\n", "        await asyncio.sleep(0)\n        try:\n            if self.in_company:\n", "../gateway/relay/test_company.py"),
    Mutation("what ended is told of in portions", "gateway/relay/app.py", "TOLD_AT_ONCE = 32\n", "TOLD_AT_ONCE = 320\n", "../gateway/relay/test_company.py -k one_go"),
    Mutation("all that ended is told of", "gateway/relay/app.py", "        if self._ended:\n", "        if False:\n", "../gateway/relay/test_company.py -k one_go"),
    # Events passed on as they come.
    Mutation("what a text may not hold is read", STREAMS, "        if _PLAIN.fullmatch(raw, start, end) is None or not", "        if not", "test_fuzz.py ../gateway/dialects/test_repeated_events.py -k 'listen or repeated'"),
    Mutation("a text is tried before it is believed", STREAMS, "        if self.only_text(payload.replace(quoted, b'\"other than %b' % quoted[1:])) != f\"other than {text}\":\n            return\n", "", "../gateway/dialects/test_repeated_events.py"),
    Mutation("an event that is known has a bound too", STREAMS, " and len(data) <= splitter.limit", "", "../gateway/dialects/test_repeated_events.py -k beyond_the_limit"),
    Mutation("who reads slowly is not written to at once", "gateway/http_cycle.py", "            or self.flow.write_paused\n", "", "../gateway/test_http_protocol.py -k at_once"),
    Mutation("each piece that is handed on moves the limit", CONNECTION, "            self.deadline = by\n            if not by", "            self.deadline = min(by, self.deadline)\n            if not by", "../gateway/upstream/test_hand_on.py -k each_piece"),
    Mutation("a limit that moved meanwhile holds", CONNECTION, "                by = connection.deadline\n", "                by = connection.deadline and by\n", "../gateway/upstream/test_hand_on.py -k meanwhile"),
    Mutation("who is cancelled is handed nothing", CONNECTION, "        if take is None or waiter is None or waiter.done():\n", "        if take is None or waiter is None:\n", "../gateway/upstream/test_hand_on.py -k cancelled"),
]  # fmt: skip


def copy_tree(to: Path) -> None:
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, to / name)


def arguments_of(tests: str) -> list[str]:
    """Paths seen from the root."""
    words = tests.partition(" -k ")
    paths = [str(Path("tests/faults") / word) for word in words[0].split()]
    paths = [path.replace("tests/faults/../", "tests/") for path in paths]
    return paths + (["-k", words[2].strip("'")] if words[2] else [])


def noticed(mutation: Mutation, tree: Path) -> str:
    """`red`, `green`, or why it could not be tried."""
    path = tree / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return f"its place is there {text.count(mutation.old)} times"
    path.write_text(text.replace(mutation.old, mutation.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not full"]
    try:
        ran = subprocess.run(
            [*command, "--timeout", "40", *arguments_of(mutation.tests)],
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(text)
    if ran.returncode == 0:
        return "green"
    return (
        "red" if ran.returncode == 1 else f"pytest ended with {ran.returncode}: {ran.stdout[-500:]}{ran.stderr[-300:]}"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutations", description=__doc__)
    parser.add_argument("--only", default="")
    chosen = [mutation for mutation in MUTATIONS if parser.parse_args(arguments).only in mutation.name]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="pilotage-mutations-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        for mutation in chosen:
            outcome = noticed(mutation, tree)
            missed += outcome != "red"
            print(f"{outcome:6} {mutation.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
