"""A client of Kafka's wire protocol: blocking connections to the brokers of one cluster."""
