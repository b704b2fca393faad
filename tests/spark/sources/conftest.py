from support.kafka_fixtures import following, own_broker, source_of, topic  # noqa: F401
