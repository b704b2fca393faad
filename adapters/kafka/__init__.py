"""Options, errors and logs that all Kafka clients share."""
