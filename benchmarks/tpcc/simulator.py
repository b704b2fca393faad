"""Transactions like those of TPC-C over tables in memory, with an event for every change of a row.

New-Order, Payment and Delivery are TPC-C's, over fewer rows. Catalog is our own: it renumbers, drops and adds items that
are never ordered, with their stock, so that keys change. One New-Order in a hundred is rolled back and has no events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple

from replicator.domain.change import Op

from .tables import TABLES

Row = Mapping[str, Any]
START = datetime(2024, 2, 28, 23, 59, 0, 0, UTC)
CENT = Decimal("0.01")
FIRST = Decimal("10.00")
"""The payments of every customer when the history begins."""
NAMES = ("Émile", "Ada", "Łukasz", "明日香", "Zoë", "Борис", "O'Neil", 'J"r', "Joséphine 🎉", "")
DATA = (
    "plain",
    "a,b",
    'say "hi"',
    "two\nlines",
    "back\\slash",
    "tab\there",
    "NULL",
    "",
    None,
    "ünï©ode ☃",
    "x" * 300,
    " padded ",
    "\\N",
)
KINDS = {"new_order": 45, "payment": 43, "delivery": 8, "catalog": 4}


class RowChange(NamedTuple):
    """A change of a row: `before` and `after` as in Debezium, with Op.READ for rows that were there. `tx` numbers the
    transaction from 1, 0 for those rows; `at` is its commit."""

    op: Op
    table: str
    before: Row | None
    after: Row | None
    tx: int
    at: datetime


@dataclass
class Tpcc:
    """Tables with these numbers of rows, and their changes. `tables` holds the rows by key; those of `history`, which has no
    key, by number."""

    seed: int = 1
    warehouses: int = 1
    districts: int = 2
    customers: int = 5
    items: int = 20
    tables: dict[str, dict[Any, Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rng = Random(self.seed)
        self._tx, self._at = 0, START
        self._changes: list[RowChange] = []
        self._spare = list(range(self.items + 1, self.items + 6))
        self._added = self.items + 100
        self.tables = {name: {} for name in TABLES}

    def load(self) -> list[RowChange]:
        """The rows that the history begins with."""
        for item in range(1, self.items + 6):
            self._insert_row("item", self._item(item), Op.READ)
        for w in range(1, self.warehouses + 1):
            paid = FIRST * self.customers * self.districts
            at = self._address("w")
            self._insert_row(
                "warehouse",
                {"w_id": w, "w_name": self._choose_name(), **at, "w_tax": self._choose_rate(), "w_ytd": paid},
                Op.READ,
            )
            for item in range(1, self.items + 6):
                self._insert_row("stock", self._stock(w, item), Op.READ)
            for d in range(1, self.districts + 1):
                self._district(w, d)
        return self._take_changes()

    def transactions(self, count: int) -> Iterator[list[RowChange]]:
        """This number of further transactions, each with its changes in order; one that was rolled back has none."""
        run: dict[str, Callable[[], None]] = {
            "new_order": self._new_order, "payment": self._payment, "delivery": self._delivery, "catalog": self._catalog,
        }  # fmt: skip
        for _ in range(count):
            self._tx += 1
            self._at += timedelta(microseconds=self._rng.choice((1, 999, 250_000, 1_000_000, 61_000_003)))
            run[self._rng.choices(list(KINDS), list(KINDS.values()))[0]]()
            yield self._take_changes()

    def history(self, transactions: int) -> list[RowChange]:
        """`load`, and the changes of this number of transactions."""
        return [*self.load(), *(change for one in self.transactions(transactions) for change in one)]

    def rows(self, table: str) -> list[Row]:
        """The rows of a table as they are now."""
        return list(self.tables[table].values())

    def _take_changes(self) -> list[RowChange]:
        taken, self._changes = self._changes, []
        return taken

    def _add_change(self, op: Op, table: str, before: Row | None, after: Row | None) -> None:
        self._changes.append(RowChange(op, table, before, after, self._tx, self._at))

    def _insert_row(self, table: str, row: Row, op: Op = Op.CREATE) -> None:
        keys = TABLES[table].keys
        key = tuple(row[k] for k in keys) if keys else len(self.tables[table])
        self.tables[table][key] = row
        self._add_change(op, table, None, row)

    def _update_row(self, table: str, key: tuple[Any, ...], **changed: Any) -> None:
        """A change of columns, those of the key among them."""
        before = self.tables[table].pop(key)
        after = {**before, **changed}
        self.tables[table][tuple(after[k] for k in TABLES[table].keys)] = after
        self._add_change(Op.UPDATE, table, before, after)

    def _delete_row(self, table: str, key: tuple[Any, ...]) -> None:
        self._add_change(Op.DELETE, table, self.tables[table].pop(key), None)

    def _new_order(self) -> None:
        rng = self._rng
        w, d = self._choose_place()
        rolled_back = rng.random() < 0.01
        lines = [(rng.randint(1, self.items), self._choose_other(w), rng.randint(1, 10)) for _ in range(rng.randint(5, 15))]
        if rolled_back:
            return
        o = self.tables["district"][w, d]["d_next_o_id"]
        self._update_row("district", (w, d), d_next_o_id=o + 1)
        local = int(all(supply == w for _, supply, _ in lines))
        order = {"o_w_id": w, "o_d_id": d, "o_id": o, "o_c_id": rng.randint(1, self.customers), "o_entry_d": self._local()}
        self._insert_row("orders", {**order, "o_carrier_id": None, "o_ol_cnt": len(lines), "o_all_local": local})
        self._insert_row("new_order", {"no_w_id": w, "no_d_id": d, "no_o_id": o})
        for number, (item, supply, quantity) in enumerate(lines, 1):
            self._order_line((w, d, o, number), item, supply, quantity)

    def _order_line(self, key: tuple[int, int, int, int], item: int, supply: int, quantity: int) -> None:
        w, d = key[:2]
        stock = self.tables["stock"][supply, item]
        left = stock["s_quantity"] - quantity
        self._update_row(
            "stock", (supply, item), s_quantity=left if left >= 10 else left + 91, s_ytd=stock["s_ytd"] + quantity,
            s_order_cnt=stock["s_order_cnt"] + 1, s_remote_cnt=stock["s_remote_cnt"] + (supply != w),
        )  # fmt: skip
        named = dict(zip(TABLES["order_line"].keys, key, strict=True))
        amount = quantity * self.tables["item"][(item,)]["i_price"]
        info = stock[f"s_dist_{(d - 1) % 10 + 1:02}"]
        self._insert_row("order_line", {
            **named, "ol_i_id": item, "ol_supply_w_id": supply, "ol_delivery_d": None, "ol_quantity": quantity,
            "ol_amount": amount, "ol_dist_info": info,
        })  # fmt: skip

    def _payment(self) -> None:
        w, d = self._choose_place()
        c_w, c_d = (w, d) if self._rng.random() < 0.85 else self._choose_place()
        c, amount = self._rng.randint(1, self.customers), self._choose_money(1, 5000)
        self._update_row("warehouse", (w,), w_ytd=self.tables["warehouse"][(w,)]["w_ytd"] + amount)
        self._update_row("district", (w, d), d_ytd=self.tables["district"][w, d]["d_ytd"] + amount)
        customer = self.tables["customer"][c_w, c_d, c]
        data = self._rng.choice(DATA) if customer["c_credit"] == "BC" else customer["c_data"]
        self._update_row(
            "customer", (c_w, c_d, c), c_balance=customer["c_balance"] - amount, c_data=data,
            c_ytd_payment=customer["c_ytd_payment"] + amount, c_payment_cnt=customer["c_payment_cnt"] + 1,
        )  # fmt: skip
        self._pay((c_w, c_d, c), (w, d), amount)

    def _pay(self, customer: tuple[int, int, int], place: tuple[int, int], amount: Decimal, op: Op = Op.CREATE) -> None:
        w, d, c = customer
        payer = {"h_c_id": c, "h_c_d_id": d, "h_c_w_id": w, "h_d_id": place[1], "h_w_id": place[0]}
        paid = {"h_date": self._local(), "h_amount": amount, "h_data": self._rng.choice(DATA)}
        self._insert_row("history", {**payer, **paid}, op)

    def _delivery(self) -> None:
        w, carrier = self._rng.randint(1, self.warehouses), self._rng.randint(1, 10)
        for d in range(1, self.districts + 1):
            waiting = [key for key in self.tables["new_order"] if key[:2] == (w, d)]
            if waiting:
                self._deliver(min(waiting), carrier)

    def _deliver(self, key: tuple[int, int, int], carrier: int) -> None:
        self._delete_row("new_order", key)
        order = self.tables["orders"][key]
        self._update_row("orders", key, o_carrier_id=carrier)
        total = Decimal(0)
        for number in range(1, order["o_ol_cnt"] + 1):
            total += self.tables["order_line"][(*key, number)]["ol_amount"]
            self._update_row("order_line", (*key, number), ol_delivery_d=self._local())
        place = (*key[:2], order["o_c_id"])
        customer = self.tables["customer"][place]
        delivered = customer["c_delivery_cnt"] + 1
        self._update_row("customer", place, c_balance=customer["c_balance"] + total, c_delivery_cnt=delivered)

    def _catalog(self) -> None:
        """Renumber an item, drop one, or add one. The old number may go to a new item."""
        rng, w = self._rng, self._rng.randint(1, self.warehouses)
        self._added += 1
        kind = rng.randrange(4) if self._spare else 3
        if kind == 3:
            self._add(self._added)
            return
        item = self._spare.pop(rng.randrange(len(self._spare)))
        if kind == 2:
            self._delete_row("item", (item,))
            for each in range(1, self.warehouses + 1):
                self._delete_row("stock", (each, item))
            return
        self._update_row("item", (item,), i_id=self._added, i_data=rng.choice(DATA))
        for each in range(1, self.warehouses + 1):
            self._update_row("stock", (each, item), s_i_id=self._added, s_quantity=w)
        self._spare.append(self._added)
        if kind == 1:
            self._add(item)

    def _add(self, item: int) -> None:
        self._insert_row("item", self._item(item))
        for w in range(1, self.warehouses + 1):
            self._insert_row("stock", self._stock(w, item))
        self._spare.append(item)

    def _district(self, w: int, d: int) -> None:
        own = {"d_w_id": w, "d_id": d, "d_name": self._choose_name(), **self._address("d"), "d_tax": self._choose_rate()}
        self._insert_row("district", {**own, "d_ytd": FIRST * self.customers, "d_next_o_id": 1}, Op.READ)
        for c in range(1, self.customers + 1):
            self._insert_row("customer", self._customer(w, d, c), Op.READ)
            self._pay((w, d, c), (w, d), FIRST, Op.READ)

    def _customer(self, w: int, d: int, c: int) -> Row:
        rng = self._rng
        named = {
            "c_w_id": w,
            "c_d_id": d,
            "c_id": c,
            "c_first": self._choose_name(),
            "c_middle": "OE",
            "c_last": self._choose_name(),
        }
        since = START - timedelta(days=rng.randrange(20_000), microseconds=rng.randrange(10**12))
        credit = {"c_since": since, "c_credit": rng.choice(("GC", "BC")), "c_credit_lim": Decimal("50000.00")}
        money = {"c_discount": self._choose_rate(), "c_balance": -FIRST, "c_ytd_payment": FIRST, "c_payment_cnt": 1}
        phone = {"c_phone": f"{rng.randrange(10**16):016}"}
        return {**named, **self._address("c"), **phone, **credit, **money, "c_delivery_cnt": 0, "c_data": rng.choice(DATA)}

    def _item(self, i: int) -> Row:
        named = {"i_id": i, "i_im_id": self._rng.randint(1, 10_000), "i_name": self._choose_name()}
        return {**named, "i_price": self._choose_money(1, 100), "i_data": self._rng.choice(DATA)}

    def _stock(self, w: int, i: int) -> Row:
        dist = {f"s_dist_{n:02}": f"{self._rng.randrange(16**12):024x}" for n in range(1, 11)}
        counts = {"s_ytd": Decimal("0.00"), "s_order_cnt": 0, "s_remote_cnt": 0, "s_data": self._rng.choice(DATA)}
        return {"s_w_id": w, "s_i_id": i, "s_quantity": self._rng.randint(10, 100), **dist, **counts}

    def _address(self, letter: str) -> Row:
        rng = self._rng
        streets = {
            f"{letter}_street_1": self._choose_name(),
            f"{letter}_street_2": rng.choice(DATA),
            f"{letter}_city": self._choose_name(),
        }
        return {**streets, f"{letter}_state": rng.choice(("CA", "NY")), f"{letter}_zip": f"{rng.randrange(10**4):04}11111"}

    def _choose_place(self) -> tuple[int, int]:
        return self._rng.randint(1, self.warehouses), self._rng.randint(1, self.districts)

    def _choose_other(self, w: int) -> int:
        return self._rng.randint(1, self.warehouses) if self._rng.random() < 0.01 else w

    def _choose_name(self) -> str:
        return self._rng.choice(NAMES)

    def _choose_money(self, low: int, high: int) -> Decimal:
        return self._rng.randint(low * 100, high * 100) * CENT

    def _choose_rate(self) -> Decimal:
        return Decimal(self._rng.randrange(2001)).scaleb(-4)

    def _local(self) -> datetime:
        return self._at.replace(tzinfo=None)
