from ramify.overlay.live.client.blocking import BlockingClient as BlockingClient
from ramify.overlay.live.client.client import Client as Client

__version__: str
