"""A lease in LEASES."""

import msgspec

from bus.records.codec import reader


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Value of a lease's key. `token` differs each time a holder acquires the lease."""

    holder: str
    token: str


decode_lease = reader("lease", LeaseRecord)
