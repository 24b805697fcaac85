# SPDX-License-Identifier: Apache-2.0
"""Where in the script a thread is, in whatever library it is stuck.

script_line(threading.get_ident())      # "train.py:17, in batches"; empty: not in a script
lines()                                 # "/home/me/train.py:17 /home/me/train.py:60"
"""

import inspect
import sys

LIBRARIES = {*sys.stdlib_module_names, "deepspeed", "ostinato", "torch"}


def script_line(thread: int) -> str:
    """The innermost frame outside LIBRARIES, of a thread other than the caller's."""
    frame = sys._current_frames().get(thread)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in LIBRARIES:
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"


def lines() -> str:
    """Every line of the calling thread's stack, from the caller's outwards, to the script's. The same in both
    starts of a script, however it was started."""
    frame, found = inspect.currentframe(), []
    while (frame := frame and frame.f_back) is not None:
        code = frame.f_code
        found.append(f"{code.co_filename}:{frame.f_lineno}")
        if (code.co_name, frame.f_globals.get("__name__")) == ("<module>", "__main__"):
            break
    return " ".join(found)
