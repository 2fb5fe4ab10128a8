"""Who may do what on a closed bus: for each role what it writes, and which streams it reads.

Plain data. A *role* is a kind of user: a process, the program on a node, a subscription, a person. What a worker needs
is in its folder, and `workers.roles` makes the roles of processes from that. From what a role reads and writes follow
its subjects, among them those of the JetStream API. A subject may have a template, which the server replaces:
`{{name()}}` is the name of the user, `{{tag(x)}}` each of its tags `x:VALUE`.

Only the keeper creates streams, and nobody changes or deletes one. A user that reads streams has a few names for
consumers: what one user may create has an end, and takes no place of others. The durable consumers of SAMPLES and
TABLES have known names, and are denied to all others.

A server writes its answer to whatever reply subject a request has, also into a bucket. So programs that only publish
samples are users of another account, which has no stream: `PUBLISHERS`. They may ask nothing: an answer can be a
thousand times as large as its question, and a server keeps it for each connection that does not read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import zip_longest
from operator import or_
from typing import TypeVar

from bus.buckets import (
    ALL,
    BREAKERS,
    DEAD_LETTERS,
    EVENTS,
    HEADER_BYTES,
    LEASES,
    NODES,
    SAMPLES,
    SAMPLES_CONSUMER,
    SINK_CONSUMERS,
    SOURCES,
    TABLES,
    TABLES_CONSUMER,
    Bucket,
    Stream,
)
from bus.buckets import WORKERS as WORKERS_BUCKET
from bus.subjects import API, EXPECTED, OWN_RIGHTS, PUBLISHERS_API, STRICT, dead_letters_subject
from bus.subjects import SAMPLES as SAMPLES_SUBJECT
from bus.subjects import TABLES as TABLES_SUBJECT

NAME = "{{name()}}"
"""The name of the user."""

SOURCE = "{{tag(source)}}"
"""Each source of the user, by its tags `source:NAME`."""

CONSUMER = "{{tag(consumer)}}"
"""Each name that a user may give to consumers beside its own, by its tags `consumer:NAME`."""

PLACES = 8
"""How many such names a person gets: so many commands may follow one stream at once."""

PROCESS_PLACES = 24
"""How many such names a process gets, with all its replicas together.

Each replica has one consumer of a stream that it reads, and for a moment a second one. That of a replica that was
killed stays for some seconds.
"""

MOST_USERS: Mapping[tuple[str, ...], int] = {("reader", "operator"): 50, ("subscriber",): 300}
"""So many users of these roles cannot have all 1,000 consumers that a server gives to a stream, or to EVENTS, even if
each has all of its consumers (facts.md n45): the last 250 are left for processes."""

INBOX = "_INBOX"
"""The answers to a user with credentials come to `_INBOX.<user>.>`, which nobody else may subscribe to.

A template is a whole token, so the name cannot be a part of the first one.
"""

ANY = ("*",)
"""Consumers of any name."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The subjects to which a user may publish and subscribe; everything else is refused.

    Attributes:
        denied: Subjects to which the user may not publish although `publish` contains them.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one connection of a user may take of a server; nothing limits the connections of a user (facts.md n42).

    Attributes:
        subscriptions: How many it may have at once.
        message_bytes: The most bytes of a message that it sends, with its headers; None: what the server allows.
    """

    subscriptions: int
    message_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """What a role may do.

    Attributes:
        reads: The streams and buckets that it may read, each as a whole.
        writes: The subjects to which it may publish data, with wildcards.
        durables: Its durable consumers, as stream and name.
        gets: The streams of which it may get single messages, and no more: a reader of a stream has many subjects.
        purges: The buckets of which it may purge messages: tombstones, and the history of keys.
        creates: Whether it may create the streams and buckets of the product, and no others.
        apart: Whether its users are in an account without streams, and only publish.
        asks: Whether users who are `apart` may ask for their own rights, and about streams by `PUBLISHERS_API`, as
            programs of an earlier version do. All others may.
        consumers: The names that it may give to consumers of what it reads; one token each, `*` for any, as processes
            of an earlier version needed.
        many: What it reads with many consumers at once, whose number nobody knows in advance: there they may have any
            name.
        any_stream: Whether its subjects have `*` for the stream, in place of each that it reads. Only for who reads
            `ALL`: nobody may create another stream in the account.
    """

    reads: tuple[Stream | Bucket, ...] = ()
    writes: tuple[str, ...] = ()
    durables: tuple[tuple[Stream, str], ...] = ()
    gets: tuple[Stream, ...] = ()
    purges: tuple[Bucket, ...] = ()
    creates: bool = False
    apart: bool = False
    asks: bool = False
    consumers: tuple[str, ...] = ANY
    many: tuple[Stream | Bucket, ...] = ()
    any_stream: bool = False

    def __or__(self, other: "Rights") -> "Rights":
        return Rights(
            reads=_joined(self.reads, other.reads),
            writes=_joined(self.writes, other.writes),
            durables=_joined(self.durables, other.durables),
            gets=_joined(self.gets, other.gets),
            purges=_joined(self.purges, other.purges),
            creates=self.creates or other.creates,
            apart=self.apart and other.apart,
            asks=self.asks or other.asks,
            consumers=other.consumers if self.consumers == ANY else self.consumers,
            many=_joined(self.many, other.many),
            any_stream=self.any_stream or other.any_stream,
        )

    @property
    def streams(self) -> tuple[Stream | Bucket, ...]:
        """The streams and buckets that it reads, writes, creates, or gets messages of, in the order of `ALL`."""
        known = [*self.reads, *self.gets, *(stream for stream, _ in self.durables)]
        return tuple(of for of in ALL if self.creates or of in known or self._writes_to(of))

    def _writes_to(self, of: Stream | Bucket) -> bool:
        return any(overlap(written, subject) for written in self.writes for subject in of.subjects)

    @property
    def permissions(self) -> Permissions:
        """The same as subjects."""
        publish = list(self.writes)
        known = ["*"] if self.any_stream else [of.stream for of in self.streams]
        if self.asks or not self.apart:
            publish = [OWN_RIGHTS, *publish, *(f"{API}.STREAM.INFO.{stream}" for stream in known)]
            publish += [f"{PUBLISHERS_API}.STREAM.INFO.{stream}" for stream in known if self.apart]
        if self.any_stream:
            publish += _of_reader("*", self.consumers)
        else:
            for of in self.reads:
                publish += _of_reader(of.stream, ANY if of in self.many else self.consumers)
        for stream, durable in self.durables:
            publish += _of_durable(stream.stream, durable)
        publish += [_get(of.stream) for of in self.gets]
        publish += [f"$JS.API.STREAM.PURGE.{of.stream}" for of in self.purges]
        publish += [f"$JS.API.STREAM.CREATE.{of.stream}" for of in ALL if self.creates]
        denied: list[str] = []
        for stream, durable in ((SAMPLES, SAMPLES_CONSUMER), (TABLES, TABLES_CONSUMER)):
            if stream in self.reads and (stream, durable) not in self.durables:
                denied += _of_durable(stream.stream, durable)
        return Permissions(publish=_joined(publish), subscribe=(f"{INBOX}.{NAME}.>",), denied=tuple(denied))


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A kind of user.

    Attributes:
        workers: The workers of a process; none for programs and people.
        who: Who it is, for people.
    """

    who: str
    rights: Rights
    limits: Limits
    workers: tuple[str, ...] = ()

    @property
    def earlier(self) -> Rights:
        """While credentials of an earlier version are taken: its processes gave random names to consumers.

        And those of sinks had the names of the sinks. Its programs on nodes asked about their stream. Its commands look
        for the names of their consumers in subjects with the stream.
        """
        if self.rights.apart:
            return replace(self.rights, asks=True)
        durables = _joined((of, "*" if name in SINK_CONSUMERS else name) for of, name in self.rights.durables)
        return replace(self.rights, consumers=ANY, durables=durables) if self.workers else self.rights

    @property
    def strict(self) -> Rights:
        """Once such credentials are refused: who reads everything is told by a right that has no other meaning.

        And its subjects are few, since a server keeps them for each of its connections.
        """
        return self.rights | Rights(writes=(STRICT,), any_stream=True) if self.rights.reads == ALL else self.rights


def _get(stream: str) -> str:
    return f"$JS.API.STREAM.MSG.GET.{stream}"


def _of_reader(stream: str, names: Iterable[str]) -> list[str]:
    """What a reader of a whole stream publishes: consumers of its own, and reads from the leader."""
    subjects = [_get(stream), f"$JS.FC.{stream}.>"]
    for name in names:
        subjects += [
            f"$JS.API.CONSUMER.CREATE.{stream}.{name}",
            f"$JS.API.CONSUMER.CREATE.{stream}.{name}.>",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
            f"$JS.API.CONSUMER.DELETE.{stream}.{name}",
        ]
    return subjects


def _of_durable(stream: str, name: str) -> list[str]:
    return [
        f"$JS.API.CONSUMER.INFO.{stream}.{name}",
        f"$JS.API.CONSUMER.CREATE.{stream}.{name}",
        f"$JS.API.CONSUMER.CREATE.{stream}.{name}.>",
        f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
        f"$JS.API.CONSUMER.DELETE.{stream}.{name}",
        f"$JS.ACK.{stream}.{name}.>",
    ]


def overlap(first: str, second: str) -> bool:
    """Whether a subject can match both patterns; a template counts as `*`."""
    for one, other in zip_longest(map(_wildcard, first.split(".")), map(_wildcard, second.split("."))):
        if one is None or other is None:
            return False
        if ">" in (one, other):
            return True
        if "*" not in (one, other) and one != other:
            return False
    return True


def _wildcard(token: str) -> str:
    return "*" if "{{" in token else token


def _joined(first: Iterable[T], second: Iterable[T] = ()) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def lease(key: str) -> Rights:
    """Holds a lease of this key."""
    return Rights(reads=(LEASES,), writes=(LEASES.subject(key),))


def source(name: str) -> Rights:
    """Publishes samples of all nodes as one source, and reports on it."""
    return Rights(reads=(SOURCES,), writes=(*_samples_of(name), SOURCES.subject(name)))


def expects() -> Rights:
    """Knows which processes run, and stores how many should."""
    return Rights(reads=(WORKERS_BUCKET,), writes=(WORKERS_BUCKET.subject(f"{EXPECTED}.*"),))


def _samples_of(source: str) -> tuple[str, ...]:
    """The subjects of a source that knows many nodes."""
    return f"{SAMPLES_SUBJECT}.*.{source}", f"{TABLES_SUBJECT}.{source}.*"


_NAMED = (NAME, CONSUMER)

_READER = Rights(reads=ALL, consumers=_NAMED)

_PUBLISHER_LIMITS = Limits(subscriptions=4, message_bytes=SAMPLES.max_message_bytes + HEADER_BYTES)
"""A client of NATS has one subscription for all answers, and one more for answers that nobody waits for at once; some
have one for each request that waits. Few, since each acknowledgement counts once for each subscription to its inbox.
"""

_PERSON_SUBSCRIPTIONS = 100
"""A command has one subscription for answers, and at most one for each stream."""

_QUESTION_BYTES = 16 << 10
"""The largest message of who only reads: the configuration of a consumer, which the server keeps in its memory."""

_PROCESS_LIMITS = Limits(subscriptions=1000)
"""A worker has at most ten; `agents` one more for each agent, of which there are at most 100, and `notify` for each
sink."""


def of_process(role: str, workers: Mapping[str, Rights]) -> Role:
    """The role of a process with these workers. It stores that it runs below its role, where no other may write."""
    rights = reduce(or_, workers.values(), Rights(writes=(WORKERS_BUCKET.subject(f"{role}.*"),)))
    named = replace(rights, consumers=_NAMED)
    return Role(who=f"tas run {role}", rights=named, limits=_PROCESS_LIMITS, workers=tuple(workers))


OTHERS: Mapping[str, Role] = {
    "node": Role(
        who="a program on a node, or tas run machine there",
        rights=Rights(writes=(f"{SAMPLES_SUBJECT}.{NAME}.{SOURCE}",), apart=True),
        limits=_PUBLISHER_LIMITS,
    ),
    "publisher": Role(
        who="a program that publishes samples of all nodes",
        rights=Rights(writes=_samples_of(SOURCE), apart=True),
        limits=_PUBLISHER_LIMITS,
    ),
    "subscriber": Role(
        who="a subscription to events, of the name of the user",
        rights=Rights(writes=(dead_letters_subject(NAME),), durables=((EVENTS, NAME),)),
        limits=Limits(subscriptions=_PERSON_SUBSCRIPTIONS, message_bytes=DEAD_LETTERS.max_message_bytes + HEADER_BYTES),
    ),
    "reader": Role(
        who="a person who looks: tas status, get, explain, trace, events, top, doctor",
        rights=_READER,
        limits=Limits(subscriptions=_PERSON_SUBSCRIPTIONS, message_bytes=_QUESTION_BYTES),
    ),
    "operator": Role(
        who="a person who acts: a reader with tas pause, resume, reset, release, dismiss and publish",
        rights=_READER
        | expects()
        | Rights(writes=(BREAKERS.subject("*"), NODES.subject("*.released"), *SAMPLES.subjects)),
        limits=Limits(subscriptions=_PERSON_SUBSCRIPTIONS),
    ),
}
"""The roles of people and of other programs, by their names."""

PUBLISHERS = tuple(role for role, each in OTHERS.items() if each.rights.apart)
"""The roles whose users are in an account without streams, so that no answer to them reaches a stream."""


def permissions_of(role: Role, name: str, tags: Sequence[str], *, earlier: bool = False) -> Permissions:
    """What a server allows a user of a role: the permissions without templates. `tags` are texts such as `source:a`.

    With `earlier`, if the server also takes the credentials of an earlier version.
    """
    own = (role.earlier if earlier else role.strict).permissions
    values = {
        template: [value for tag in tags for key, _, value in (tag.partition(":"),) if key == kind]
        for template, kind in ((SOURCE, "source"), (CONSUMER, "consumer"))
    }

    def expanded(subjects: Iterable[str]) -> tuple[str, ...]:
        found = [subject.replace(NAME, name) for subject in subjects]
        for template, of_user in values.items():
            found = [
                subject.replace(template, each)
                for subject in found
                for each in (of_user if template in subject else ("",))
            ]
        return _joined(found)

    return Permissions(publish=expanded(own.publish), subscribe=expanded(own.subscribe), denied=expanded(own.denied))


def tags_of(role: Role, name: str, *, sources: Iterable[str] = ()) -> tuple[str, ...]:
    """The tags of a user: its sources, and the names of its consumers if its role reads streams.

    A name of a consumer has `_`, which no name of a user has that is not of a node: so it is nobody else's.
    """
    most = PROCESS_PLACES if role.workers else PLACES
    places = [f"consumer:{name}_{place}" for place in range(1, most + 1)]
    named = bool(role.rights.reads) and CONSUMER in role.rights.consumers
    return (*(f"source:{each}" for each in sources), *(places if named else ()))


def is_refusing_earlier(allowed: Collection[str]) -> bool | None:
    """Whether a server refuses credentials of an earlier version, by the subjects that it allows to a user.

    None: this does not tell. Only people are told, and only they read dead letters: so it was in earlier versions, too.
    """
    if STRICT in allowed:
        return True
    return False if f"$JS.API.STREAM.MSG.GET.{DEAD_LETTERS.stream}" in allowed else None


def published(*, earlier: bool) -> dict[str, str]:
    """The subjects of all users of `PUBLISHERS`, and those on which the account with the streams answers them.

    With `earlier`, if the server also takes the credentials of an earlier version.
    """
    rights = (OTHERS[role].earlier if earlier else OTHERS[role].strict for role in PUBLISHERS)
    subjects = (subject for each in rights for subject in each.permissions.publish)
    own = (".".join(map(_wildcard, each.split("."))) for each in subjects if not each.startswith("$"))
    return {each: each.replace(PUBLISHERS_API, API) for each in own}


def user_of(consumer: str) -> str:
    """The user who may have made a consumer, unless its name is random or that of a subscription."""
    name, _, place = consumer.rpartition("_")
    return name if name and place.isdecimal() else consumer
