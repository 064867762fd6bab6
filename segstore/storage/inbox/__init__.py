"""The writer's side of staged appends: what lies in the inbox is verified and adopted."""
