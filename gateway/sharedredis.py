"""The Redis that gateways share, as the configuration names it."""

from collections.abc import Callable
from random import Random

from gateway.redisline import Line, Servers
from gateway.tenancy import RedisConfig


def servers_of(config: RedisConfig) -> Servers:
    """Say which Redis is meant; there must be one."""
    urls = (config.url,) if config.url is not None else ()
    return Servers(
        urls=urls if config.sentinel is None else config.sentinel.urls,
        service="" if config.sentinel is None else config.sentinel.service,
        is_cluster=config.is_cluster,
        username=config.username,
        password=config.password,
        database=config.database,
        ca_file=config.ca_file or "",
        timeout_s=config.op_timeout_s,
    )


def line_to(config: RedisConfig, chance: Random, on_change: Callable[[bool], None] = lambda is_up: None) -> Line | None:
    """Make the line to it, not yet started; None where there is no Redis.

    Raises:
        ValueError: it cannot be talked to as configured; the message is one line, without a password.
    """
    if not config.is_there:
        return None
    try:
        return Line(servers_of(config), chance=chance, on_change=on_change)
    except OSError as error:
        raise ValueError(f"redis.ca_file {config.ca_file}: {error.strerror or error}") from error
