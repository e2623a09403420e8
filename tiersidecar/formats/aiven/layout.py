"""Layout of one segment as three objects, and of the manifest that says how to read them back (docs/design/0001).

Nothing here holds a .log: the uploader passes each chunk through :attr:`SegmentLayout.transform`, puts the result, and
asks for the small objects in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

from tiersidecar.domain.data_keys import NO_CONTEXT, KeyContext
from tiersidecar.domain.ids import DEFAULT_PLACE, place_prefix
from tiersidecar.domain.segments import RemoteLogSegmentMetadata
from tiersidecar.formats.aiven.index_blob import (
    MOST_CHUNKS,
    IndexArtefacts,
    IndexBlob,
    SegmentIndexes,
    build_index_blob,
)
from tiersidecar.formats.aiven.key_ring import DataKeys
from tiersidecar.formats.aiven.keys import (
    CustomMetadata,
    CustomMetadataField,
    ObjectKeys,
    main_path,
    planned_keys,
    write_custom_metadata,
)
from tiersidecar.formats.aiven.manifest import ManifestEncryption, write_manifest
from tiersidecar.formats.aiven.transforms import (
    AAD_SIZE,
    DATA_KEY_SIZE,
    DEFAULT_CHUNK_SIZE,
    ChunkCipher,
    ChunkIndex,
    TransformPlan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEncryption:
    """A segment's own data key and AAD, and the data key as the manifest has it."""

    cipher: ChunkCipher = field(repr=False)
    wrapped_data_key: str = field(repr=False)


def new_segment_encryption(
    key_ring: DataKeys, random_bytes: Callable[[int], bytes], context: KeyContext = NO_CONTEXT
) -> SegmentEncryption:
    """Return a fresh data key and AAD, wrapped by the ring's active key."""
    # Two draws: if the AAD were part of the data key, the manifest would reveal it.
    data_key, aad = random_bytes(DATA_KEY_SIZE), random_bytes(AAD_SIZE)
    cipher = ChunkCipher(data_key, aad)
    return SegmentEncryption(cipher=cipher, wrapped_data_key=key_ring.wrap(data_key, random_bytes, context))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLayout:
    """The plan for one segment, made before its first byte is read."""

    metadata: RemoteLogSegmentMetadata
    keys: ObjectKeys
    transform: TransformPlan
    encryption: SegmentEncryption | None
    key_prefix: str
    place: str
    custom_metadata_fields: Set[CustomMetadataField]
    kafka_version: tuple[int, int]

    @property
    def chunk_count(self) -> int:
        return self.transform.chunk_count(self.metadata.segment_size_in_bytes)

    @property
    def fixed_chunk_index(self) -> ChunkIndex | None:
        """Return the chunk index, where the transform lets it be known beforehand; else None."""
        return self.transform.fixed_chunk_index(self.metadata.segment_size_in_bytes)

    def chunk_index(self, transformed_sizes: Sequence[int]) -> ChunkIndex:
        """Return the chunk index from the sizes of all stored chunks, in order.

        Raises:
            ValueError: they are not the chunks of this segment.
        """
        return self.transform.chunk_index(self.metadata.segment_size_in_bytes, transformed_sizes)

    def index_blob(self, artefacts: IndexArtefacts, ivs: Sequence[bytes] = ()) -> IndexBlob:
        """Return the ``.indexes`` object; with encryption ``ivs`` has one for each kind of index."""
        return build_index_blob(artefacts, self.transform.cipher, ivs)

    def manifest(self, chunk_index: ChunkIndex, indexes: SegmentIndexes) -> bytes:
        """Return the ``.rsm-manifest`` object."""
        encryption = None
        if self.encryption is not None:
            encryption = ManifestEncryption(data_key=self.encryption.wrapped_data_key, aad=self.encryption.cipher.aad)
        return write_manifest(
            metadata=self.metadata,
            chunk_index=chunk_index,
            indexes=indexes,
            compression=self.transform.compression,
            encryption=encryption,
            kafka_version=self.kafka_version,
        )

    def custom_metadata(self, object_sizes: Iterable[int]) -> bytes | None:
        """Return the custom metadata of COPY_SEGMENT_FINISHED, from the sizes of the three objects; None without fields and in
        the default place."""
        wanted = self.custom_metadata_fields
        if not wanted and not self.place:
            return None
        path = main_path(self.metadata.remote_log_segment_id, self.metadata.start_offset)
        return write_custom_metadata(
            CustomMetadata(
                remote_size=sum(object_sizes) if CustomMetadataField.REMOTE_SIZE in wanted else None,
                object_prefix=self.key_prefix if CustomMetadataField.OBJECT_PREFIX in wanted else None,
                object_key=path if CustomMetadataField.OBJECT_KEY in wanted else None,
                place=self.place,
            )
        )


def plan_objects(
    *,
    metadata: RemoteLogSegmentMetadata,
    key_prefix: str = "",
    place: str = DEFAULT_PLACE,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    compression: bool = False,
    encryption: SegmentEncryption | None = None,
    custom_metadata_fields: Set[CustomMetadataField] = frozenset(),
    kafka_version: tuple[int, int] = (4, 3),
) -> SegmentLayout:
    """Plan the layout of the segment of ``metadata``, its COPY_SEGMENT_STARTED event, in ``place``, whose own prefix is
    ``key_prefix``.

    ``kafka_version`` is the (major, minor) of the brokers that are to read the segment natively one day.  A segment that would
    have more chunks than readers take gets larger ones.
    """
    chunk_size = max(chunk_size, -(-metadata.segment_size_in_bytes // MOST_CHUNKS))
    cipher = None if encryption is None else encryption.cipher
    return SegmentLayout(
        metadata=metadata,
        keys=planned_keys(metadata, place_prefix(place) or key_prefix),
        transform=TransformPlan(chunk_size=chunk_size, compression=compression, cipher=cipher),
        encryption=encryption,
        key_prefix=key_prefix,
        place=place,
        custom_metadata_fields=frozenset(custom_metadata_fields),
        kafka_version=kafka_version,
    )
