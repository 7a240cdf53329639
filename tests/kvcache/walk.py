"""A scheduler without any sense draws legal operations on a world at random."""

from collections.abc import Callable

import numpy as np

from muxcluster.core.job import Side, SlotCopies
from muxcluster.kvcache.pool import Shortage
from tests.kvcache.world import World

MOST_JOBS, MOST_TEXTS = 4, 10


class LendingWalk:
    """Draws one operation at a time. seen: how often each kind of thing happened."""

    def __init__(self, world: World) -> None:
        self.world, self.draw = world, world.draw
        self.seen: dict[str, int] = {}
        self._rows: set[tuple[str, int]] = set()

    def step(self) -> None:
        operation = self.draw.choices(
            ("open", "job", "advance", "end", "lend", "close", "room", "quota", "drop", "reset"),
            (20, 60, 30, 60, 8, 2, 4, 0.5, 0.5, 0.1),
        )[0]
        getattr(self, operation)()
        self.world.check()

    def _note(self, kind: str, count: int = 1) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + count

    def _idle(self, side: Side | None = None) -> list[tuple[str, int]]:
        texts = self.world.texts.items()
        return [k for k, t in texts if t.job is None and (side is None or t.side is side)]

    def open(self) -> None:
        model = self.draw.choice(list(self.world.models))
        rows = range(self.world.models[model].max_seqs)
        closed = [row for row in rows if (model, row) not in self.world.texts]
        if closed and len(self.world.texts) < MOST_TEXTS:
            path = self.draw.choices((1, 2), (4, 1), k=self.draw.randint(0, 3))
            cache = self.world.cache
            is_empty = cache.free + cache.evictable > 0.3 * cache.num_blocks
            side = self.draw.choices((Side.LEFT, Side.RIGHT), (1, 4) if is_empty else (4, 1))[0]
            self.world.open(model, self.draw.choice(closed), path, side)

    def close(self) -> None:
        """Mostly of those that cannot grow any more, as in life, or are being saved."""
        idle = self._idle()
        saving = [
            (model, row)
            for model, row in idle
            if not self.world.cache.of(model).lending.can_restore(row)
        ]
        if saving and self.draw.random() < 0.5:
            self._note("closed while saving")
            self.world.close(*self.draw.choice(saving))
            return
        done = [key for key in idle if not self._counts(key[0], [key[1]])]
        if chosen := done if done and self.draw.random() < 0.8 else idle:
            self.world.close(*self.draw.choice(chosen))

    def lend(self) -> int:
        side = self.draw.choices((Side.RIGHT, Side.LEFT), (3, 2))[0]
        if idle := [key for key in self._idle(side) if key not in self._rows]:
            lent = self.world.lend(*self.draw.choice(idle), self.draw.randint(1, 20))
            self._note(f"{side.name} lent", lent)
            return lent
        return 0

    def room(self) -> None:
        """A left sequence is admitted: it takes blocks long before it writes there."""
        num_lent = {name: self.world.cache.of(name).num_lent for name in self.world.models}
        if idle := [key for key in self._idle(Side.LEFT) if not num_lent[key[0]][key[1]]]:
            model, row = self.draw.choice(idle)
            most = self.world.models[model].max_model_len
            self.world.grow(model, {row: self.draw.randint(1, most)})

    def quota(self) -> None:
        model = self.draw.choice(list(self.world.models))
        self.world.cache.set_quotas({model: self.draw.randint(20, 60)})

    def drop(self) -> None:
        self.world.cache.drop_cache()

    def reset(self) -> None:
        self.world.reset()

    def advance(self) -> None:
        """Jobs run at paces of their own; a slow one sees much happen around it."""
        for job_id in list(self.world.runs):
            is_slow = job_id % 3 == 0 and self.draw.random() < 0.75
            for _ in range(0 if is_slow else self.draw.randint(0, 3)):
                self.world.advance(job_id)

    def end(self) -> None:
        runs = self.world.runs
        done = [job_id for job_id in runs if runs[job_id].stage == 3]
        quick = [job_id for job_id in runs if job_id % 3]
        if runs and self.draw.random() < 0.06:
            self._note("failed")
            self.world.end(self.draw.choice(quick or list(runs)), succeeded=False)
        elif done:
            self.world.end(self.draw.choice(done), succeeded=True)

    def job(self) -> None:
        """Assemble a job as a scheduler would: restores first or saves first."""
        world = self.world
        ready = [key for key in self._idle() if self._counts(key[0], [key[1]])]
        if len(world.runs) >= MOST_JOBS or not ready:
            self.advance()
            self.end()
            return
        model, job_id = self.draw.choice(ready)[0], world.next()
        sides = [Side.LEFT, Side.RIGHT]
        self.draw.shuffle(sides)
        counts: dict[int, int] = {}
        copies: list[SlotCopies] = []
        for side in sides:
            rows = [row for name, row in self._idle(side) if name == model]
            rows = self.draw.sample(rows, self.draw.randint(len(rows) > 1, (len(rows) + 1) // 2))
            self._rows |= {(model, row) for row in rows}
            add = self._left if side is Side.LEFT else self._right
            add(model, job_id, rows, counts, copies)
        if counts:
            world.launch(job_id, model, counts, copies)
            self._note("jobs")
        self._rows.clear()
        if any(len(each.saves) for each in copies) and self.draw.random() < 0.3:
            self.close()
            self.lend()

    def _counts(self, model: str, rows: list[int]) -> dict[int, int]:
        most = self.world.models[model].max_model_len
        wanted: dict[int, int] = {}
        for row in rows:
            room = most - len(self.world.texts[model, row].tokens)
            if room > 0:
                is_left = self.world.texts[model, row].side is Side.LEFT
                count = self.draw.choice((1, 2, 3, 5, 9) if is_left else (1, 9, 30, 50))
                wanted[row] = min(room, count)
        return wanted

    def _grow(self, model: str, side: Side, wanted: dict[int, int]) -> bool:
        texts = self.world.texts
        ends = {row: len(texts[model, row].tokens) + n for row, n in wanted.items()}
        if self.world.grow(model, ends):
            return True
        while ends and not self.world.grow(model, ends):
            if not self._make_room(side):
                row = self.draw.choice(list(ends))
                del ends[row], wanted[row]
        return bool(ends)

    def _make_room(self, side: Side) -> bool:
        """Others lend to interactive ones; where that does not help, one ends."""
        if side is Side.LEFT and self.lend():
            return True
        idle = [key for key in self._idle() if key not in self._rows]
        lent = {key for key in idle if self.world.cache.of(key[0]).num_lent[key[1]]}
        idle = [key for key in idle if key not in lent]
        if idle and self.draw.random() < (0.1 if side is Side.LEFT else 0.6):
            self.world.close(*self.draw.choice(idle))
            return True
        return False

    def _left(self, model, job_id, rows, counts, copies) -> None:
        """Those that are whole, then those that lent columns: see ModelLending.restore."""
        blocked = self.world.cache.of(model).lending.blocked()
        if blocked is not None:
            self._note("blocked", sum(bool(blocked[row]) for row in rows))
            rows = [row for row in rows if not blocked[row]]
        num_lent = self.world.cache.of(model).num_lent
        lent = [row for row in rows if num_lent[row]]
        wanted = self._counts(model, [row for row in rows if row not in lent])
        if wanted and self._grow(model, Side.LEFT, wanted):
            self._save(model, job_id, wanted, copies)
            counts.update(wanted)
        lent = [row for row in lent if self.world.cache.of(model).lending.can_restore(row)]
        wanted = self._counts(model, lent)
        if wanted and self._restore(model, job_id, Side.LEFT, list(wanted), copies):
            restored = dict.fromkeys(wanted, 0)
            if not self._grow(model, Side.LEFT, wanted) and self._is_called_off(
                job_id, list(restored), counts, copies
            ):
                return
            self._save(model, job_id, restored | wanted, copies)
            counts.update(restored | wanted)

    def _save(self, model, job_id, wanted, copies) -> None:
        texts = self.world.texts
        ends = [len(texts[model, row].tokens) + n for row, n in wanted.items()]
        saved = self.world.cache.of(model).lending.saves(
            np.array(list(wanted), dtype=np.int32), np.array(ends, dtype=np.int32), job_id
        )
        self._note("saves", sum(len(each.saves) for each in saved))
        copies += saved

    def _restore(self, model, job_id, side, lent, copies) -> bool:
        cache = self.world.cache
        cost = sum(cache.of(model).lending.restore_cost(row) for row in lent)
        restored = self.world.restore(model, lent, job_id)
        while isinstance(restored, Shortage):
            assert side is Side.LEFT or restored.blocks == cost - cache.of(model).headroom(side)
            if not self._make_room(side):
                return False
            cost = sum(cache.of(model).lending.restore_cost(row) for row in lent)
            restored = self.world.restore(model, lent, job_id)
        self._note(f"{side.name} restores", len(restored.restores))
        self._note(f"{side.name} moves", len(restored.moves))
        copies.append(restored)
        return True

    def _is_called_off(self, job_id, lent, counts, copies) -> bool:
        """The job has nothing but restored rows that have no room, and never runs."""
        self._note("no room")
        if not lent or counts or copies[:-1] or self.draw.random() < 0.5:
            return False
        self._note("called off")
        assert self.world.cache.end_copies(job_id, False) == []
        copies.pop()
        return True

    def _lack(self, model, wanted) -> int:
        texts = self.world.texts
        ends = [len(texts[model, row].tokens) + count for row, count in wanted.items()]
        rows = np.array(list(wanted), dtype=np.int32)
        return self.world.cache.of(model).lack(rows, np.array(ends, dtype=np.int32))

    def _swap(self, lack: Callable[[], int], job_id, copies) -> None:
        """The job needs so many blocks: others lend, and are swapped out for it at once."""
        cache = self.world.cache
        idle = [key for key in self._idle() if key not in self._rows]
        if lack() <= cache.of("wide").headroom(Side.RIGHT) or self.draw.random() < 0.5:
            return
        for key in self.draw.sample(idle, len(idle)):
            untaken = sum(cache.of(model).lending.untaken(row) for model, row in idle)
            short = lack() - cache.of("wide").headroom(Side.RIGHT)
            if untaken < short:
                self.world.lend(*key, short - untaken)
        short = lack() - cache.of("wide").headroom(Side.RIGHT)
        swapped = self.world.swap_out(idle, short, job_id) if short > 0 else None
        if swapped is not None:
            copies += swapped
            self._note("swaps", len(swapped))
            assert lack() == cache.of("wide").headroom(Side.RIGHT)

    def _right(self, model, job_id, rows, counts, copies) -> None:
        cache = self.world.cache
        rows = [row for row in rows if cache.of(model).lending.can_restore(row)]
        wanted = self._counts(model, rows)
        lent = [row for row in rows if cache.of(model).num_lent[row] and row in wanted]
        self._swap(
            lambda: sum(cache.of(model).lending.restore_cost(row) for row in lent), job_id, copies
        )
        if lent and not self._restore(model, job_id, Side.RIGHT, lent, copies):
            return
        self._swap(lambda: self._lack(model, wanted), job_id, copies)
        if not self._grow(model, Side.RIGHT, wanted) and self._is_called_off(
            job_id, lent, counts, copies
        ):
            return
        counts.update(dict.fromkeys(lent, 0) | wanted)
