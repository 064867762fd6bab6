"""Names of features in a standby's registration (Kafka: BrokerRegistrationRequest). FEATURE says that the
broker is a standby, SYNC_FEATURE that the standby is in sync mode. Threads: no state.
"""

from __future__ import annotations

FEATURE, SYNC_FEATURE = "segstore.standby", "segstore.standby.sync"
