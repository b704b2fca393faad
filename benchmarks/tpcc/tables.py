"""The nine tables of TPC-C."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = "tpcc"
WHOLE, TEXT, LOCAL, INSTANT, MONEY, RATE = (
    "int32",
    "string",
    "timestamp[us]",
    "timestamp[us, UTC]",
    "decimal(12,2)",
    "decimal(4,4)",
)


@dataclass(frozen=True)
class TpccTable:
    """`columns` with the names of their types as configurations spell them, in order. `keys`: none for a table without."""

    name: str
    columns: Mapping[str, str]
    keys: tuple[str, ...]

    @property
    def path(self) -> str:
        """As records and configurations call it."""
        return f"{SCHEMA}.{self.name}"


def _table(name: str, keys: str, **columns: str) -> TpccTable:
    return TpccTable(name, columns, tuple(keys.split()))


_ADDRESS = ("street_1", "street_2", "city", "state", "zip")
_DISTRICTS = tuple(f"s_dist_{n:02}" for n in range(1, 11))

TABLES: Mapping[str, TpccTable] = {
    table.name: table
    for table in (
        _table(
            "warehouse", "w_id", w_id=WHOLE, w_name=TEXT, **{f"w_{n}": TEXT for n in _ADDRESS}, w_tax=RATE, w_ytd=MONEY
        ),
        _table(
            "district", "d_w_id d_id", d_w_id=WHOLE, d_id=WHOLE, d_name=TEXT, **{f"d_{n}": TEXT for n in _ADDRESS},
            d_tax=RATE, d_ytd=MONEY, d_next_o_id=WHOLE,
        ),
        _table(
            "customer", "c_w_id c_d_id c_id", c_w_id=WHOLE, c_d_id=WHOLE, c_id=WHOLE, c_first=TEXT, c_middle=TEXT,
            c_last=TEXT, **{f"c_{n}": TEXT for n in _ADDRESS}, c_phone=TEXT, c_since=INSTANT, c_credit=TEXT,
            c_credit_lim=MONEY, c_discount=RATE, c_balance=MONEY, c_ytd_payment=MONEY, c_payment_cnt=WHOLE,
            c_delivery_cnt=WHOLE, c_data=TEXT,
        ),
        _table(
            "history", "", h_c_id=WHOLE, h_c_d_id=WHOLE, h_c_w_id=WHOLE, h_d_id=WHOLE, h_w_id=WHOLE, h_date=LOCAL,
            h_amount=MONEY, h_data=TEXT,
        ),
        _table("new_order", "no_w_id no_d_id no_o_id", no_w_id=WHOLE, no_d_id=WHOLE, no_o_id=WHOLE),
        _table(
            "orders", "o_w_id o_d_id o_id", o_w_id=WHOLE, o_d_id=WHOLE, o_id=WHOLE, o_c_id=WHOLE, o_entry_d=LOCAL,
            o_carrier_id=WHOLE, o_ol_cnt=WHOLE, o_all_local=WHOLE,
        ),
        _table(
            "order_line", "ol_w_id ol_d_id ol_o_id ol_number", ol_w_id=WHOLE, ol_d_id=WHOLE, ol_o_id=WHOLE,
            ol_number=WHOLE, ol_i_id=WHOLE, ol_supply_w_id=WHOLE, ol_delivery_d=LOCAL, ol_quantity=WHOLE,
            ol_amount=MONEY, ol_dist_info=TEXT,
        ),
        _table("item", "i_id", i_id="int64", i_im_id=WHOLE, i_name=TEXT, i_price=MONEY, i_data=TEXT),
        _table(
            "stock", "s_w_id s_i_id", s_w_id=WHOLE, s_i_id="int64", s_quantity=WHOLE, **dict.fromkeys(_DISTRICTS, TEXT),
            s_ytd=MONEY, s_order_cnt=WHOLE, s_remote_cnt=WHOLE, s_data=TEXT,
        ),
    )
}  # fmt: skip
