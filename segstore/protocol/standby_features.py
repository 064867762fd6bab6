"""Names of features in a standby's registration (Kafka: BrokerRegistrationRequest): it is a standby, and it
is in sync mode. Threads: no state.
"""

from __future__ import annotations

FEATURE, SYNC_FEATURE = "segstore.standby", "segstore.standby.sync"
