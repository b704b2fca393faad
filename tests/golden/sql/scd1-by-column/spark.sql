-- Policy scd1-by-column, spark. See tests/golden/test_sql.py.

-- no key, counted: table public.t has no key, which policy scd1 needs
