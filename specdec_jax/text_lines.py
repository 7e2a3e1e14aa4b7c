"""Files as lines of text: what a line is, said once."""


def split_lines(data: bytes) -> tuple[list[str], list[int]]:
    r"""Splits a file into lines, at \n or \r\n and nowhere else.

    Bytes that are not UTF-8 are replaced with U+FFFD; a byte order mark is dropped.

    Returns:
      The lines, and the numbers (from 1) of those that were not UTF-8.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    rows = data.split(b"\n")
    if not rows[-1]:
        rows.pop()  # what follows the last newline is no line
    lines, invalid = [], []
    for number, row in enumerate(rows, 1):
        row = row.removesuffix(b"\r")
        try:
            lines.append(row.decode())
        except UnicodeDecodeError:
            lines.append(row.decode(errors="replace"))
            invalid.append(number)
    return lines, invalid
