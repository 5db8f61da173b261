"""Configuration of the rules that compare several homes. Part of `config.Config`."""

from pydantic import Field

from .paging import Part


class FleetConfig(Part):
    """The fleet worker. `enabled` false: detectors hand nothing on, and key drift, missing parts and probing are not
    looked for. `request_s`: a request that named the parts it needs, and whose end nobody told, is over after that
    time. `patience_s`: how long a detector that does not get on is waited for. `clock_skew_s`: how far this machine's
    clock may be ahead of the brokers'. `metrics_port`: as the detector's."""

    enabled: bool = True
    instance: str = Field("fleet-0", pattern=r"^[A-Za-z0-9._-]+$")
    request_s: float = Field(300.0, gt=0)
    patience_s: float = Field(60.0, gt=0)
    clock_skew_s: float = Field(1.0, ge=0)
    snapshot_s: float = Field(10.0, gt=0)
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)
