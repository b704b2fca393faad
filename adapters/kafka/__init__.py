"""Kafka clients: options, errors and logs that everything which speaks to a broker shares."""
