"""What each API asks of the authorizer, before its handler does anything (Kafka: KafkaApis, ControllerApis,
AclApis).
"""
