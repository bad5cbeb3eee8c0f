"""Small files written whole or not at all."""

import contextlib
import os
import pathlib


def replace_text(
  path: pathlib.Path, text: str, *, errors: str = "strict"
) -> None:
  """Writes a small file so that it is never seen half-written or empty.

  Args:
    path: the file; what it held stays until the new text is on the disk.
    text: what to write.
    errors: how characters without a UTF-8 form are treated.

  Raises:
    OSError: it could not be written; nothing of it is left.
  """
  draft = path.with_name(f"{path.name}.draft")
  try:
    with open(draft, "w", encoding="utf-8", errors=errors) as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    os.replace(draft, path)
  except OSError:
    with contextlib.suppress(OSError):
      draft.unlink()
    raise
