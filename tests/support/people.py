"""Who logs in to a gateway process, whose password is hashed as it does and not as cheaply as in the tests' own Django."""

from django.contrib.auth.hashers import PBKDF2PasswordHasher, make_password
from django.contrib.auth.models import User

PASSWORD = "a-password-for-this-test"


def a_user(name: str, **fields: bool) -> User:
    """Saved in the database that is open, with `PASSWORD`."""
    return User.objects.create(username=name, password=make_password(PASSWORD, hasher=PBKDF2PasswordHasher()), **fields)


def an_admin() -> User:
    return a_user("admin", is_staff=True, is_superuser=True)
