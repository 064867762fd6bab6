"""Names of features by which a standby says, where it registers itself (Kafka: BrokerRegistrationRequest),
that it is one, and that it is in sync mode. Threads: no state.
"""

from __future__ import annotations

FEATURE, SYNC_FEATURE = "segstore.standby", "segstore.standby.sync"
