"""ostinato: pipeline schedules that are searched, proved and enforced. `ostinato --help` lists the commands."""


def __getattr__(name: str):
    if name == "__version__":
        from ostinato._search import version

        return version()
    raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
