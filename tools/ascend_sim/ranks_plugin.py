"""The pytest side of `ranks`: a test marked `ranks(N)` runs once on each of N forked ranks.

    @pytest.mark.ranks(4)
    def test_all_reduce_sums() -> None: ...

Marker keywords: `backend` ("hccl"), `timeout_s` (60), `preload` and `path` (see
`ranks.ForkServer`). Fixture values are made in the pytest process and pickled to the ranks.
Fixtures of the ranks' own making are plain calls in the test.
"""

import pickle
from typing import Any

import pytest

from ascend_sim import ranks

_KEYWORDS = {"backend", "timeout_s", "preload", "path"}


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "ranks(world_size, *, backend, timeout_s, preload, path): run on forked ranks"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on its ranks instead of here."""
    marker = pyfuncitem.get_closest_marker("ranks")
    if marker is None:
        return None
    unknown = set(marker.kwargs) - _KEYWORDS
    if len(marker.args) != 1 or unknown:
        pytest.fail(f"ranks takes one number and {sorted(_KEYWORDS)}, not {marker}", pytrace=False)
    options: dict[str, Any] = {"preload": ranks.DEFAULT_PRELOAD, "path": (), **marker.kwargs}
    server = ranks.server(preload=options.pop("preload"), path=options.pop("path"))
    failure = None
    try:
        server.run(
            ranks.Target.of(pyfuncitem.obj, rewrite_asserts=True),
            world_size=marker.args[0],
            kwargs=_arguments(pyfuncitem),
            **options,
        )
    except ranks.RankError as error:
        failure = str(error)
    if failure is not None:
        pytest.fail(failure, pytrace=False)
    return True


def _arguments(item: pytest.Function) -> dict[str, Any]:
    names = item._fixtureinfo.argnames
    arguments = {name: item.funcargs[name] for name in names}
    for name, value in arguments.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            pytest.fail(f"fixture {name!r} cannot be handed to ranks: {error}", pytrace=False)
    return arguments
