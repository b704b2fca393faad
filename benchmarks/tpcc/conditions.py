"""The consistency conditions of TPC-C, clause 3.3.2, but for the eleventh, which is of the rows a history begins with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

Tables = Mapping[str, Iterable[Mapping[str, Any]]]
ZERO = Decimal(0)


def find_violations(tables: Tables) -> list[int]:
    """The numbers of the conditions that rows of these tables violate."""
    found = {name: list(rows) for name, rows in tables.items()}
    checks = {**_check_districts(found), **_check_orders(found), **_check_money(found)}
    return [number for number, holds in sorted(checks.items()) if not holds]


def _check_districts(t: Mapping[str, list[Mapping[str, Any]]]) -> dict[int, bool]:
    orders, waiting = defaultdict(list), defaultdict(list)
    counted: Counter[tuple[int, int]] = Counter()
    lines = Counter((r["ol_w_id"], r["ol_d_id"]) for r in t["order_line"])
    for r in t["orders"]:
        orders[r["o_w_id"], r["o_d_id"]].append(r["o_id"])
        counted[r["o_w_id"], r["o_d_id"]] += r["o_ol_cnt"]
    for r in t["new_order"]:
        waiting[r["no_w_id"], r["no_d_id"]].append(r["no_o_id"])
    ytd = _sum_by_key(((r["d_w_id"],), r["d_ytd"]) for r in t["district"])
    last = {(r["d_w_id"], r["d_id"]): r["d_next_o_id"] - 1 for r in t["district"]}
    return {
        1: all(r["w_ytd"] == ytd[(r["w_id"],)] for r in t["warehouse"]),
        2: all(
            max(orders[d], default=0) == newest and (not waiting[d] or max(waiting[d]) == newest)
            for d, newest in last.items()
        ),
        3: all(max(n) - min(n) + 1 == len(n) for n in waiting.values() if n),
        4: counted == lines,
    }


def _check_orders(t: Mapping[str, list[Mapping[str, Any]]]) -> dict[int, bool]:
    waiting = {(r["no_w_id"], r["no_d_id"], r["no_o_id"]) for r in t["new_order"]}
    orders = {(r["o_w_id"], r["o_d_id"], r["o_id"]): r for r in t["orders"]}
    lines = Counter((r["ol_w_id"], r["ol_d_id"], r["ol_o_id"]) for r in t["order_line"])
    undelivered = {key for key, r in orders.items() if r["o_carrier_id"] is None}
    return {
        5: undelivered == waiting,
        6: lines == Counter({key: r["o_ol_cnt"] for key, r in orders.items()}),
        7: all(
            (r["ol_delivery_d"] is None) == ((r["ol_w_id"], r["ol_d_id"], r["ol_o_id"]) in undelivered)
            for r in t["order_line"]
        ),
    }


def _check_money(t: Mapping[str, list[Mapping[str, Any]]]) -> dict[int, bool]:
    by_warehouse = _sum_by_key(((r["h_w_id"],), r["h_amount"]) for r in t["history"])
    by_district = _sum_by_key(((r["h_w_id"], r["h_d_id"]), r["h_amount"]) for r in t["history"])
    by_customer = _sum_by_key(((r["h_c_w_id"], r["h_c_d_id"], r["h_c_id"]), r["h_amount"]) for r in t["history"])
    buyer = {(r["o_w_id"], r["o_d_id"], r["o_id"]): (r["o_w_id"], r["o_d_id"], r["o_c_id"]) for r in t["orders"]}
    delivered = _sum_by_key(
        (buyer.get((r["ol_w_id"], r["ol_d_id"], r["ol_o_id"]), ()), r["ol_amount"])
        for r in t["order_line"]
        if r["ol_delivery_d"] is not None
    )
    customers = {(r["c_w_id"], r["c_d_id"], r["c_id"]): r for r in t["customer"]}
    return {
        8: all(r["w_ytd"] == by_warehouse[(r["w_id"],)] for r in t["warehouse"]),
        9: all(r["d_ytd"] == by_district[(r["d_w_id"], r["d_id"])] for r in t["district"]),
        10: all(r["c_balance"] == delivered[key] - by_customer[key] for key, r in customers.items()),
        12: all(r["c_balance"] + r["c_ytd_payment"] == delivered[key] for key, r in customers.items()),
    }


def _sum_by_key(amounts: Iterable[tuple[tuple[Any, ...], Decimal]]) -> dict[tuple[Any, ...], Decimal]:
    found: dict[tuple[Any, ...], Decimal] = defaultdict(lambda: ZERO)
    for key, amount in amounts:
        found[key] += amount
    return found
