from ramify.overlay.live.blocking import BlockingClient as BlockingClient
from ramify.overlay.live.clients import Client as Client

__version__: str
