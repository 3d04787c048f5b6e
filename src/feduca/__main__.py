"""`feduca` and `python -m feduca` are the command line."""

from __future__ import annotations

import signal
import threading


def main() -> None:
    """Ctrl-C while Python is still importing ends the process without a word: there is nothing to record yet."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else whoever started us ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from feduca.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
