"""Names and texts in SQL, whatever they hold: Spark quotes names in one way, PostgreSQL in
another."""


def backticked(name: str) -> str:
    """A name as Spark reads it."""
    return f"`{name.replace('`', '``')}`"


def double_quoted(name: str) -> str:
    """A name as PostgreSQL reads it."""
    return '"' + name.replace('"', '""') + '"'


def single_quoted(text: str) -> str:
    """A text as PostgreSQL reads it."""
    return "'" + text.replace("'", "''") + "'"
