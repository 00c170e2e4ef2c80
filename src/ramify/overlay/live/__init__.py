"""The live overlay: NATS with JetStream under every broker. Only this package knows NATS and asyncio."""
