"""What a broker has lost: alarms, kept for people beyond a restart.

Owns the list. It is the last message under `rejected.~alarms` of the stream REJECTED, written again when it
has changed. An alarm is shown for `SHOWN_S`; the same one again counts as new.
"""

import base64
import logging
import time
from collections.abc import Callable

import msgspec
from nats.aio.client import Client as Nats

from ramify.errors import LiveError
from ramify.overlay.control.names import REJECTED
from ramify.overlay.control.records import LossAlarm
from ramify.overlay.live.wire.streams import api

__all__ = ["ALARMS_SUBJECT", "SHOWN_S", "Alarms"]

_log = logging.getLogger(__name__)

SHOWN_S = 86_400.0
_MOST = 32
ALARMS_SUBJECT = "rejected.~alarms"
_NO_MESSAGE = 10037


class Alarms:
    """See the module. `clock` is in seconds since 1970."""

    def __init__(self, broker: str, clock: Callable[[], float] = time.time) -> None:
        self._broker, self._clock = broker, clock
        self._alarms: list[LossAlarm] = []
        self._saved = True
        # since the process began
        self.count = 0

    def tell(self, about: str, what: str) -> None:
        """Something is lost: `about` names where, `what` says it with its range."""
        self.count += 1
        _log.error("broker %s lost something: %s", self._broker, what)
        others = [each for each in self._alarms if (each.about, each.what) != (about, what)]
        self._alarms = [*others, LossAlarm(self._clock(), about, what)][-_MOST:]
        self._saved = False

    @property
    def shown(self) -> list[LossAlarm]:
        """Those that are not over, oldest first."""
        return [each for each in self._alarms if self._clock() - each.at < SHOWN_S]

    async def load(self, connection: Nats) -> None:
        """Know those of earlier processes."""
        told = await api(
            connection, f"STREAM.MSG.GET.{REJECTED}", {"last_by_subj": ALARMS_SUBJECT}, missing=_NO_MESSAGE
        )
        if told:
            data = base64.b64decode(told["message"].get("data", ""))
            try:
                earlier = msgspec.json.decode(data, type=list[LossAlarm])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _log.warning("broker %s: earlier alarms cannot be read: %s", self._broker, error)
                return
            new = [each for each in self._alarms if each not in earlier]
            self._alarms = [*earlier, *new][-_MOST:]

    async def save(self, connection: Nats) -> None:
        """Keep what is new."""
        if self._saved:
            return
        alarms = list(self._alarms)
        answer = await connection.request(ALARMS_SUBJECT, msgspec.json.encode(alarms), timeout=5)
        if error := msgspec.json.decode(answer.data or b"{}").get("error"):
            raise LiveError(f"alarms could not be kept: {error.get('description')}")
        self._saved = alarms == self._alarms
