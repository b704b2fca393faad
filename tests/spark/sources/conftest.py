from support.kafka_fixtures import follow_source, own_broker, source_of, topic  # noqa: F401
