-- The data lake's database: the raw event log, and current copies. Run once by a superuser in datalake_db.

CREATE ROLE datalake_user LOGIN PASSWORD 'datalake_password';
ALTER DATABASE datalake_db OWNER TO datalake_user;
ALTER SCHEMA public OWNER TO datalake_user;

SET ROLE datalake_user;

CREATE SCHEMA cdc_raw;

-- Every record of the change stream, one row each, the undecodable ones included (then `error` says why).
CREATE TABLE cdc_raw.cdc_events (
    event_id     text PRIMARY KEY,
    topic        text NOT NULL,
    "partition"  integer NOT NULL,
    "offset"     bigint NOT NULL,
    "timestamp"  timestamptz,
    headers      text,
    key          bytea,
    value        bytea,
    source       text,
    connector    text,
    db           text,
    "table"      text,
    op           text,
    before       text,
    after        text,
    seq_1        bigint,
    seq_2        bigint,
    seq_3        bigint,
    seq_4        bigint,
    tx           text,
    ts           timestamptz,
    schema_id    text,
    error        text,
    ingested_at  timestamptz
);

CREATE SCHEMA cdc_processed;

-- Mirrors hold what the source holds and decide nothing: no foreign keys, defaults or checks that could refuse a row.
CREATE TABLE cdc_processed.customers (
    id          bigint PRIMARY KEY,
    first_name  varchar(100),
    last_name   varchar(100),
    email       varchar(255),
    phone       varchar(40),
    city        varchar(100),
    active      boolean,
    created_at  timestamptz,
    updated_at  timestamptz
);

CREATE TABLE cdc_processed.products (
    id              bigint PRIMARY KEY,
    name            varchar(200),
    description     text,
    price           numeric(10, 2),
    stock_quantity  integer,
    attributes      jsonb,
    created_at      timestamptz,
    updated_at      timestamptz
);

CREATE TABLE cdc_processed.orders (
    id            bigint PRIMARY KEY,
    customer_id   bigint,
    status        varchar(20),
    total_amount  numeric(12, 2),
    ordered_on    date,
    created_at    timestamptz,
    updated_at    timestamptz
);

CREATE TABLE cdc_processed.order_items (
    id          bigint PRIMARY KEY,
    order_id    bigint,
    product_id  bigint,
    quantity    integer,
    unit_price  numeric(10, 2),
    created_at  timestamptz
);

RESET ROLE;
