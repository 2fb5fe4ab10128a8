"""The core: every rule of the product; no I/O, no clock.

Values come in, `now` included, and values go out. Times are seconds since 1970 (`float`); in `enforcing.memory`,
`enforcing.waking`, `verdict.pending` and `values.throttle` they are seconds of a monotonic clock. Durations are in
seconds, quantities are exact integers of 10⁻⁹ (`values.quantity`).

How `dontschedule` comes from a sample to an answer, each step with the module that decides. `bus/records/samples.py`
reads the message of a sample by steps 1 and 2. `materialize` calls 1 to 3; `watch` and `policies` call 4; `extender`
calls 5 to 9; `evaluate` calls 10, and `labels` wakes pods.

1. `values.quantity`: which number the text of a value is.
2. `samples.freshness`: whether the time at which a sample was measured is accepted, and until when the sample is fresh.
3. `samples.sample`: which of several samples of one metric counts: the newest.
4. `policy.manifest`: which policy the text of a TASPolicy is; `policy.policy`: which nodes the policy concerns, and
   when its samples are stale (`Policy.stale_after_or`: the policy's `staleAfter`, else `--stale-after`).
5. `policy.rules`: whether a node violates a rule and a strategy, and which states `dontschedule` rejects.
6. `view.view`: which nodes are in which state now, updated by each sample, label, policy and deadline.
7. `extender.wire`: which pod and candidates a request names. `extender.verbs` calls 7 to 9 in this order.
8. `extender.telemetry`: which candidates of a pod are rejected, with the reasons.
9. `extender.answers`: the response for kube-scheduler.
10. `verdict.evaluation`: the same states for one node, computed again with the same `policy.rules`, and stored;
    `enforcing.waking`: which waiting pods a recovery concerns.
"""
