"""Authorization of requests, for each API, before the handler is called (Kafka: KafkaApis, ControllerApis,
AclApis).
"""
