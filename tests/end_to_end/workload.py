"""Concurrent writers of the four tables, like applications. A seed makes a failure repeatable."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing

import psycopg
from psycopg.types.json import Jsonb

NAMES = ("Ada", "Émilie", "漢字", "O'Brien", 'Quote " \\ tab\t', "🎉 party", "", " space ", "null", "{}", "[1]", "ß" * 100)
STATUS = ("new", "paid", "shipped", "cancelled")
EVER = 1_000_000
LARGE = 6_000
"""Length of a description that PostgreSQL stores out of line (TOAST). Its characters are random, so that compression does
not make it small."""
COPIED = 200
SPARE = "NOT EXISTS (SELECT FROM orders o WHERE o.customer_id = c.id)"
UNSOLD = "NOT EXISTS (SELECT FROM order_items i WHERE i.product_id = p.id)"
Cursor = psycopg.Cursor[tuple[object, ...]]
Change = Callable[["Writer", Cursor], None]


class Rollback(Exception):
    """Rolls back the transaction."""


class Writer:
    """Writes transactions of one to five changes. Every tenth is rolled back, and some contain a part that is rolled
    back."""

    def __init__(self, dsn: str, seed: int, changes: Sequence[Change] = ()) -> None:
        self._dsn = dsn
        self._changes = changes or CHANGES
        self.random = random.Random(seed)
        self.number = seed * 1_000_000
        self.committed = 0

    def write(self, transactions: int, pause: Callable[[], bool] = lambda: False) -> None:
        """Commits up to `transactions` transactions. A transaction that loses against another writer is dropped.
        `pause` runs before each, and returns True to end."""
        with closing(psycopg.connect(self._dsn, autocommit=True)) as connection:
            for _ in range(transactions):
                if pause():
                    return
                try:
                    with connection.transaction(), connection.cursor() as cursor:
                        self._transaction(connection, cursor)
                except Rollback:
                    continue
                except (psycopg.errors.DeadlockDetected, psycopg.errors.IntegrityError):
                    continue
                self.committed += 1

    def _transaction(self, connection: psycopg.Connection, cursor: Cursor) -> None:
        for change in self.random.choices(self._changes, k=self.random.randint(1, 5)):
            change(self, cursor)
        if self.random.random() < 0.1:
            try:
                with connection.transaction():
                    insert_customer(self, cursor)
                    raise Rollback
            except Rollback:
                insert_customer(self, cursor)
        if self.random.random() < 0.1:
            raise Rollback

    def next(self) -> int:
        self.number += 1
        return self.number

    def name(self) -> str:
        return self.random.choice(NAMES)

    def text(self) -> str:
        return "".join(self.random.choices("abcdefghijklmnopqrstuvwxyzäöü漢ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", k=LARGE))


def pick_id(table: str, writer: Writer, condition: str = "true") -> str:
    """A subquery for the id of a row."""
    skip = writer.random.randint(0, 12)
    return (
        f"(SELECT {table[0]}.id FROM {table} {table[0]} WHERE {condition} ORDER BY {table[0]}.id DESC OFFSET {skip} LIMIT 1)"
    )


def insert_customer(w: Writer, c: Cursor) -> None:
    phone = w.random.choice((None, "+44 20 7946 0001", ""))
    values = (w.name(), w.name(), f"{w.next()}@example.com", phone, w.name())
    c.execute("INSERT INTO customers (first_name, last_name, email, phone, city) VALUES (%s, %s, %s, %s, %s)", values)


def update_customer(w: Writer, c: Cursor) -> None:
    query = f"UPDATE customers SET phone = %s, city = %s, active = NOT active WHERE id = {pick_id('customers', w)}"
    c.execute(query.encode(), (w.random.choice((None, "1")), w.name()))


def move_customer(w: Writer, c: Cursor) -> None:
    c.execute(f"UPDATE customers SET id = %s WHERE id = {pick_id('customers', w, SPARE)}".encode(), (w.next(),))


def delete_customer(w: Writer, c: Cursor) -> None:
    c.execute(f"DELETE FROM customers WHERE id = {pick_id('customers', w, SPARE)}".encode())


def insert_product(w: Writer, c: Cursor) -> None:
    description = w.random.choice((None, "short", w.text()))
    attributes = w.random.choice((None, {"n": w.next(), "s": [None, True, "漢"]}, []))
    price = w.random.choice(("0.00", "0.01", "99999999.99", "4.50"))
    c.execute(
        "INSERT INTO products (name, description, price, stock_quantity, attributes) VALUES (%s, %s, %s, %s, %s)",
        (w.name(), description, price, w.random.randint(-5, 5), None if attributes is None else Jsonb(attributes)),
    )


def restock(w: Writer, c: Cursor) -> None:
    """A large description does not change, and is not sent."""
    c.execute(f"UPDATE products SET stock_quantity = stock_quantity + 1 WHERE id = {pick_id('products', w)}".encode())


def describe(w: Writer, c: Cursor) -> None:
    query = f"UPDATE products SET description = %s WHERE id = {pick_id('products', w)}"
    c.execute(query.encode(), (w.random.choice((None, "", w.text(), w.text())),))


def move_product(w: Writer, c: Cursor) -> None:
    """The key changes, and a large description is not sent."""
    c.execute(f"UPDATE products SET id = %s WHERE id = {pick_id('products', w, UNSOLD)}".encode(), (w.next(),))


def delete_product(w: Writer, c: Cursor) -> None:
    c.execute(f"DELETE FROM products WHERE id = {pick_id('products', w, UNSOLD)}".encode())


def reprice(w: Writer, c: Cursor) -> None:
    """Changes many rows in one statement."""
    some = "SELECT id FROM products WHERE id %% 3 = %s ORDER BY id DESC LIMIT 12"
    c.execute(f"UPDATE products SET price = price / 2 WHERE id IN ({some})".encode(), (w.random.randint(0, 2),))


def insert_order(w: Writer, c: Cursor) -> None:
    query = f"INSERT INTO orders (customer_id, status, total_amount) SELECT {pick_id('customers', w)}, %s, %s RETURNING id"
    found = c.execute(query.encode(), (w.random.choice(STATUS), "1234567890.12")).fetchone()
    for _ in range(w.random.randint(0, 3)):
        product = pick_id("products", w)
        item = f"INSERT INTO order_items (order_id, product_id, quantity, unit_price) SELECT %s, {product}, 2, 0.99"
        c.execute(item.encode(), (found and found[0],))


def update_order(w: Writer, c: Cursor) -> None:
    query = f"UPDATE orders SET status = %s, ordered_on = %s WHERE id = {pick_id('orders', w)}"
    c.execute(query.encode(), (w.random.choice(STATUS), w.random.choice(("1815-12-10", "9999-12-31", "2024-02-29"))))


def delete_order(w: Writer, c: Cursor) -> None:
    """Deletes an order with its items."""
    c.execute(f"DELETE FROM orders WHERE id = {pick_id('orders', w)}".encode())


def update_item(w: Writer, c: Cursor) -> None:
    c.execute(f"UPDATE order_items SET quantity = quantity + 1 WHERE order_id = {pick_id('orders', w)}".encode())


def there_and_back(w: Writer, c: Cursor) -> None:
    """Inserts, changes, deletes and inserts a row again under one key, in one transaction."""
    key = w.next()
    insert = "INSERT INTO products (id, name, price) VALUES (%s, %s, 1)"
    c.execute(insert, (key, "first"))
    c.execute("UPDATE products SET name = 'second' WHERE id = %s", (key,))
    c.execute("DELETE FROM products WHERE id = %s", (key,))
    c.execute(insert, (key, "third"))


def swap_products(w: Writer, c: Cursor) -> None:
    """Swaps the keys of two rows, in one transaction."""
    query = f"SELECT p.id FROM products p WHERE {UNSOLD} ORDER BY p.id DESC OFFSET %s LIMIT 2"
    if len(found := [key for (key,) in c.execute(query.encode(), (w.random.randint(0, 8),)).fetchall()]) == 2:
        one, other = found
        for old, new in ((one, -1), (other, one), (-1, other)):
            c.execute("UPDATE products SET id = %s WHERE id = %s", (new, old))


def copy_customers(w: Writer, c: Cursor) -> None:
    """Inserts many rows that share one log position."""
    with c.copy("COPY customers (first_name, last_name, email) FROM STDIN") as copy:
        for _ in range(COPIED):
            copy.write_row((w.name(), "copied", f"{w.next()}@example.com"))


CHANGES: tuple[Change, ...] = (
    insert_customer, insert_customer, update_customer, update_customer, move_customer, delete_customer,
    insert_product, insert_product, restock, restock, restock, describe, move_product, delete_product, reprice,
    insert_order, insert_order, update_order, update_order, delete_order, update_item, there_and_back,
)  # fmt: skip


class Load:
    """Writers in threads, until they are done or `end` is called.

    With `rest` seconds between two transactions of a writer, the load lasts as long as a test, and the compared tables
    stay small.
    """

    def __init__(
        self,
        dsn: str,
        seeds: tuple[int, ...],
        transactions: int = EVER,
        rest: float = 0.02,
        changes: Sequence[Change] = (),
    ) -> None:
        self._stop = threading.Event()
        self._rest = rest
        self.writers = [Writer(dsn, seed, changes) for seed in seeds]
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._write, args=(w, transactions), daemon=True) for w in self.writers]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def committed(self) -> int:
        return sum(writer.committed for writer in self.writers)

    def finish(self) -> int:
        """Waits until the writers are done, and returns the number of committed transactions."""
        for thread in self._threads:
            thread.join(120)
        assert not self.busy and not self.failures, self.failures
        return self.committed

    def end(self) -> int:
        """Lets each writer finish its transaction, then ends."""
        self._stop.set()
        return self.finish()

    def _write(self, writer: Writer, transactions: int) -> None:
        try:
            writer.write(transactions, lambda: self._stop.wait(self._rest))
        except BaseException as error:
            self.failures.append(error)
