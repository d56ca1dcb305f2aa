"""Django's settings, all of them from `gateway.env`. Importing this makes the data directory and its secrets."""

import os
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from django.templatetags.static import static
from django.urls import reverse_lazy

from gateway import env

BASE_DIR = Path(__file__).resolve().parent.parent

try:
    PILOTAGE = env.read(os.environ)
except env.BadEnvironment as error:
    raise SystemExit(str(error)) from None

try:
    PILOTAGE.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _secret = PILOTAGE.secret_key or env.kept_secret(PILOTAGE.data_dir / "secret_key")
    _pepper = PILOTAGE.token_pepper or env.kept_secret(PILOTAGE.data_dir / "token_pepper")
except (OSError, ValueError) as error:
    raise SystemExit(f"Pilotage cannot start: PILOTAGE_DATA_DIR {PILOTAGE.data_dir} cannot be used: {error}") from None

SECRET_KEY = env.derived_key(_secret, "django").hex()
TOKEN_PEPPER = env.derived_key(_pepper, "token-digest")

DEBUG = PILOTAGE.debug
ALLOWED_HOSTS = list(PILOTAGE.allowed_hosts)
CSRF_TRUSTED_ORIGINS = list(PILOTAGE.csrf_trusted_origins)

INSTALLED_APPS = [
    "daphne",  # before staticfiles: `runserver` then serves the ASGI application
    "unfold",  # before the admin, whose templates it replaces
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "gateway",
    "routing",
    "accounts",
    "reports",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "gateway" / "theme"],  # what replaces templates of the admin's theme
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

ROOT_URLCONF = "gateway.urls"
ASGI_APPLICATION = "gateway.asgi.application"


def database_settings(chosen: env.Database, wait_seconds: float) -> dict[str, Any]:
    if isinstance(chosen, env.SqliteFile):
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": chosen.path,
            "OPTIONS": {
                # The gateway, the admin and later the worker write to one file: readers never wait (WAL), a writer
                # takes its place at the start of a transaction and waits for it, so none fails half-way.
                "transaction_mode": "IMMEDIATE",
                "timeout": wait_seconds,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;",
            },
            # On disk, so that threads of one test see one database.
            "TEST": {"NAME": chosen.path.with_name("test.sqlite3")},
        }
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": chosen.host,
        "PORT": "" if chosen.port is None else chosen.port,
        "USER": chosen.user,
        "PASSWORD": chosen.password,
        "NAME": chosen.name,
        "OPTIONS": {
            "connect_timeout": max(1, round(wait_seconds)),
            # A server that is gone without a word is noticed within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 25_000,
            **chosen.options,
        },
    }


DATABASES = {
    "default": database_settings(
        PILOTAGE.database or env.SqliteFile(path=PILOTAGE.data_dir / "pilotage.sqlite3"), PILOTAGE.database_wait_seconds
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def broker_settings(process: env.Environment) -> dict[str, Any]:
    """Celery's broker: Redis, else files in the data directory."""
    if process.redis_url is None:
        options: dict[str, Any] = {
            "folder": str(process.data_dir / "broker"),
            "max_waiting": process.broker_max_messages,
            "polling_interval": 0.5,
        }
        return {"url": "files://localhost", "options": options, "ssl": None}
    url = urlsplit(process.redis_url)
    if url.scheme == "unix":
        number = dict(parse_qsl(url.query)).get("db", "0")
        text = f"redis+socket://{url.netloc}{url.path}?virtual_host={number}"
    else:
        text = process.redis_url
    options = {
        # A task is given to another worker when it was not acknowledged by then: never while one may be at it.
        "visibility_timeout": 2 * process.task_hard_seconds + 5,
        "unacked_restore_throttle": 1,  # it is looked for those every ten seconds, not every hundred
        "global_keyprefix": "pilotage:",
        "socket_connect_timeout": 5,
        "socket_timeout": 15,
        "socket_keepalive": True,
        "health_check_interval": 25,
    }
    verified = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True} if url.scheme == "rediss" else None
    return {"url": text, "options": options, "ssl": verified}


_broker = broker_settings(PILOTAGE)
CELERY_BROKER_URL = _broker["url"]
CELERY_BROKER_TRANSPORT_OPTIONS = _broker["options"]
CELERY_BROKER_USE_SSL = _broker["ssl"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # a broker may be away for as long as it likes
CELERY_BROKER_CONNECTION_TIMEOUT = 5
CELERY_RESULT_BACKEND = None  # what a task did stands in rows
CELERY_TASK_IGNORE_RESULT = True
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = CELERY_RESULT_SERIALIZER = CELERY_EVENT_SERIALIZER = "json"
CELERY_TASK_DEFAULT_QUEUE = "pilotage"
CELERY_TASK_ACKS_LATE = True
# A task whose own process was killed is not begun again at once: what killed it would do so again. It comes back with
# its schedule. When the whole worker dies, the broker gives the task to another.
CELERY_TASK_REJECT_ON_WORKER_LOST = False
CELERY_TASK_SOFT_TIME_LIMIT = PILOTAGE.task_soft_seconds
CELERY_TASK_TIME_LIMIT = PILOTAGE.task_hard_seconds
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_POOL = "prefork"  # the only pool that keeps the time limits
CELERY_WORKER_CONCURRENCY = 1
CELERY_WORKER_MAX_TASKS_PER_CHILD = 500  # gives back what leaked, about twice a day
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False  # who reaches the broker may send tasks, not command the workers
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_HIJACK_ROOT_LOGGER = CELERY_WORKER_REDIRECT_STDOUTS = False
CELERY_TIMEZONE = PILOTAGE.time_zone
CELERY_BEAT_SCHEDULER = "gateway.beat:KeptScheduler"
CELERY_BEAT_SCHEDULE_FILENAME = str(PILOTAGE.data_dir / "schedule.json")
CELERY_BEAT_SYNC_EVERY = 1
CELERY_BEAT_MAX_LOOP_INTERVAL = 30

try:
    _mail = env.mail_settings(PILOTAGE)
except (OSError, ValueError) as error:
    raise SystemExit(f"Pilotage cannot start: PILOTAGE_EMAIL_PASSWORD_FILE cannot be used: {error}") from None
EMAIL_BACKEND = _mail["backend"]
EMAIL_HOST, EMAIL_PORT = _mail["host"], _mail["port"]
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail["user"], _mail["password"]
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail["starttls"], _mail["tls"]
EMAIL_TIMEOUT = PILOTAGE.email_timeout_seconds
DEFAULT_FROM_EMAIL = SERVER_EMAIL = PILOTAGE.email_from

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = PILOTAGE.time_zone
FORMAT_MODULE_PATH = ["gateway.formats"]

STATIC_URL = "static/"

LOGIN_URL = "admin:login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
SESSION_COOKIE_AGE = PILOTAGE.session_seconds
SESSION_COOKIE_NAME = "pilotage_session"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PILOTAGE.secure_cookies
CSRF_COOKIE_NAME = "pilotage_csrf"
SECURE_HSTS_SECONDS = PILOTAGE.hsts_seconds
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if PILOTAGE.trust_forwarded_proto else None
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_NUMBER_FIELDS = 20_000
"""A group's page sends some thirty fields for every target."""

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "reports.api.access.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["reports.api.access.MayRead"],
    "DEFAULT_THROTTLE_CLASSES": ["reports.api.throttle.PerIdentity"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "reports.api.negotiation.AlwaysTheFirst",
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "reports.api.errors.answer_of",
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_METADATA_CLASS": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Pilotage",
    "DESCRIPTION": "What the gateway did: requests with their evidence, sums, decisions, and the reports made of them.",
    "VERSION": "1",
    "SCHEMA_PATH_PREFIX": "/api/",
    "SERVE_PERMISSIONS": ["reports.api.access.MayRead"],
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None, "defaultModelsExpandDepth": 0},
    "SORT_OPERATION_PARAMETERS": False,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "gateway.logs.JsonLines"}},
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"},
    },
    "root": {"handlers": ["stderr"], "level": PILOTAGE.log_level},
    "loggers": {
        "django": {"handlers": [], "level": "NOTSET", "propagate": True},
        # Request lines of the servers and pages that were not found: the one line per exchange is ours.
        "django.request": {"level": "ERROR"},
        "django.server": {"handlers": [], "level": "WARNING", "propagate": True},
        "django.channels.server": {"level": "WARNING"},
        "daphne": {"level": "WARNING"},
        # Our tasks say themselves what they did.
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
        "uvicorn.access": {"level": "WARNING"},
        "asyncio": {"level": "WARNING"},
        # A line per request, and at the lowest level the headers with their keys.
        "httpx": {"level": "WARNING"},
        "httpcore": {"level": "WARNING"},
        "hpack": {"level": "WARNING"},
        # Scanners ask under every name; each is answered 400.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
        # Statements hold values, also of columns that no log may show.
        "django.db.backends": {"level": "INFO"},
    },
}


def _page(title: str, icon: str, model: str, *more: str) -> dict[str, Any]:
    """A link of the sidebar, shown to those who may see the model's list and have `more` rights."""
    app, name = model.split(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{app}_{name}_changelist"),
        "permission": lambda request: request.user.has_perms([f"{app}.view_{name}", *more]),
    }


def _report(title: str, icon: str, slug: str, right: str = "reports.view_dailyrollup") -> dict[str, Any]:
    """A report's link in the sidebar."""
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy("reports:report", args=[slug]),
        "permission": lambda request: request.user.has_perm(right),
    }


UNFOLD = {
    "SITE_TITLE": "Pilotage",
    "SITE_HEADER": "Pilotage",
    "SITE_SYMBOL": "alt_route",
    "SITE_URL": None,  # there is no other site to return to
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": lambda request: static("gateway/icon.svg")},
    ],
    "STYLES": [lambda request: static("gateway/admin.css")],
    "SCRIPTS": [lambda request: static("gateway/errors.js")],
    "DASHBOARD_CALLBACK": "gateway.overview.add_overview",
    "SHOW_HISTORY": True,
    "SHOW_VIEW_ON_SITE": False,
    "SIDEBAR": {
        "show_search": False,
        "show_all_applications": False,
        "navigation": [
            {"items": [{"title": "Overview", "icon": "dashboard", "link": reverse_lazy("admin:index")}]},
            {
                "title": "Reports",
                "items": [
                    {
                        "title": "Live",
                        "icon": "monitoring",
                        "link": reverse_lazy("reports:live"),
                        "permission": lambda request: request.user.has_perm("reports.view_dailyrollup"),
                    },
                    _report("Usage", "bar_chart", "usage"),
                    _report("Cost", "payments", "cost"),
                    _report("Savings", "savings", "savings"),
                    _report("Performance", "speed", "performance"),
                    _report("Routing decisions", "alt_route", "decisions"),
                    _report("Reliability", "health_and_safety", "reliability"),
                    _report("Expensive and odd", "troubleshoot", "odd", "reports.view_exchange"),
                    {
                        "title": "Exchanges",
                        "icon": "list_alt",
                        "link": reverse_lazy("reports:exchanges"),
                        "permission": lambda request: request.user.has_perm("reports.view_exchange"),
                    },
                    _page("Scheduled reports", "schedule_send", "reports.reportdefinition", "reports.view_dailyrollup"),
                    _page("Report runs", "inventory", "reports.reportrun", "reports.view_dailyrollup"),
                ],
            },
            {
                "title": "Routing",
                "items": [
                    _page("Providers", "cloud", "routing.provider"),
                    _page("Provider models", "deployed_code", "routing.providermodel"),
                    _page("Model groups", "hub", "routing.modelgroup"),
                ],
            },
            {
                "title": "Access",
                "items": [
                    _page("Callers", "apps", "accounts.caller"),
                    _page("Tokens", "key", "accounts.token"),
                ],
            },
            {
                "title": "System",
                "items": [
                    _page("Revisions", "history", "gateway.revision"),
                    _page("Legal holds", "gavel", "reports.legalhold"),
                    _page("Users", "person", "auth.user"),
                    _page("User groups", "groups", "auth.group"),
                ],
            },
        ],
    },
}
