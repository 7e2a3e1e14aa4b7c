"""What a user did wrong, said in one sentence."""


class UserError(Exception):
    """Something the user has to change; the message says what."""


class MissingExtraError(UserError, ImportError):
    """An optional package is not installed; the message names the command that does it."""
