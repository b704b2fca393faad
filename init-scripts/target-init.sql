-- The target database: a mirror of the source. Run once by a superuser in target_db.

CREATE ROLE target_user LOGIN PASSWORD 'target_password';
ALTER DATABASE target_db OWNER TO target_user;
ALTER SCHEMA public OWNER TO target_user;

SET ROLE target_user;

-- Mirrors hold what the source holds and decide nothing: no foreign keys, defaults or checks that could refuse a row.
CREATE TABLE public.customers (
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

CREATE TABLE public.products (
    id              bigint PRIMARY KEY,
    name            varchar(200),
    description     text,
    price           numeric(10, 2),
    stock_quantity  integer,
    attributes      jsonb,
    created_at      timestamptz,
    updated_at      timestamptz
);

CREATE TABLE public.orders (
    id            bigint PRIMARY KEY,
    customer_id   bigint,
    status        varchar(20),
    total_amount  numeric(12, 2),
    ordered_on    date,
    created_at    timestamptz,
    updated_at    timestamptz
);

CREATE TABLE public.order_items (
    id          bigint PRIMARY KEY,
    order_id    bigint,
    product_id  bigint,
    quantity    integer,
    unit_price  numeric(10, 2),
    created_at  timestamptz
);

RESET ROLE;
