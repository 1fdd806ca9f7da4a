"""Whether E's arena has room for an item that is yet to be encoded."""

from typing import TYPE_CHECKING

from ec_ipc.store import Store

if TYPE_CHECKING:
    from vllm.multimodal.inputs import MultiModalFeatureSpec


class ArenaSpace:
    """Admission by size. The scheduler asks about an arena that its worker owns.

    What this scheduling pass has admitted already is not in the directory yet, so it is added up
    here. An item of a modality whose width is unknown, or larger than the arena, is admitted: the
    worker then finds out, and skips publishing.
    """

    def __init__(
        self, store: Store, engine: int, worker_role: str, widths: dict[str, int], itemsize: int
    ) -> None:
        self._store = store
        self._engine = engine
        self._worker_role = worker_role
        self._widths = widths
        self._itemsize = itemsize
        self._directory = store.segment  # of which the slot is
        self._slot: int | None = None
        self._arena_bytes = 0
        self._admitted: dict[str, dict[str, int]] = {}  # request -> item -> bytes, of this pass
        self._asking: dict[str, int] = {}

    def is_own(self, slot: int) -> bool:
        """Whether a participant slot is this engine's worker."""
        return slot == self._worker_slot()

    def begin(self, request_id: str) -> None:
        """The items asked about from here on are this request's."""
        self._asking = self._admitted[request_id] = {}

    def admits(self, identifier: str, feature: "MultiModalFeatureSpec") -> bool:
        """Whether the arena has room for the item beside what was admitted in this pass."""
        width = self._widths.get(feature.modality)
        slot = self._worker_slot()
        if width is None or slot is None:
            return True
        nbytes = feature.mm_position.get_num_embeds() * width * self._itemsize
        if nbytes > self._arena_bytes:
            return True
        admitted = {k: v for items in self._admitted.values() for k, v in items.items()}
        admitted[identifier] = nbytes
        if not self._store.segment.fits(slot, sum(admitted.values())):
            return False
        self._asking[identifier] = nbytes
        return True

    def end_pass(self) -> None:
        """The worker is about to publish what was admitted."""
        self._admitted.clear()

    def _worker_slot(self) -> int | None:
        directory = self._store.segment
        if directory is not self._directory:
            self._directory, self._slot = directory, None
        if self._slot is None:
            owners = {
                p.slot
                for p in self._store.segment.participants()
                if p.engine == self._engine and p.role == self._worker_role
            }
            for record in self._store.segment.arenas():
                if record.slot in owners:
                    self._slot, self._arena_bytes = record.slot, record.nbytes
        return self._slot
