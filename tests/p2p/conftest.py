"""Runs `async def test_...` under trio."""

import inspect

import pytest
import trio


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        await pyfuncitem.obj(**arguments)

    trio.run(run)
    return True
