"""An address of Ray at which nobody listens."""

from __future__ import annotations

import pytest

from qualify.errors import InfrastructureError

pytestmark = pytest.mark.filterwarnings("default")  # what Ray warns of is its own to mend


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no-such-host.invalid:6379", "127.0.0.1:port", "127.0.0.1:99999"]
)
def test_where_nobody_listens_there_is_no_cluster(address: str) -> None:
    """It is said at once; Ray itself tries for many minutes."""
    from qualify.fleet.ray_engine import RayEngine

    with pytest.raises(InfrastructureError, match="no Ray cluster there"):
        RayEngine(address)
