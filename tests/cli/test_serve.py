"""`kvtrail serve --link`: a link is printed where a console listens, and nowhere else."""

from pathlib import Path

from click.testing import CliRunner, Result
from kvtrail.audit.console.access import ADDRESS_FILE
from kvtrail.audit.console.server import bind
from kvtrail.cli.main import kvtrail
from kvtrail.schemas.errors import StackError


def link(directory: Path, port: int) -> Result:
    environ = {"KVTRAIL_LOCAL__DIRECTORY": str(directory), "KVTRAIL_SERVE__PORT": str(port)}
    return CliRunner().invoke(kvtrail, ["serve", "--link"], env=environ)


def test_a_link_is_printed_only_where_something_listens(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as listener:
        port = int(listener.getsockname()[1])
        (tmp_path / ADDRESS_FILE).write_text(f"http://127.0.0.1:{port}\n")
        for given in (port, 0):
            assert f"http://127.0.0.1:{port}/enter?code=" in link(tmp_path, given).output
    for given in (port, 0):  # what was noted of a console that is gone is of no use
        told = link(tmp_path, given)
        assert isinstance(told.exception, StackError)
        assert told.output == "" and f"nothing listens at http://127.0.0.1:{port}" in str(told.exception)
