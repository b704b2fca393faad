-- What customers have ordered, at the prices of the time of each order. The first version of a product that is known
-- counts for what was ordered before it, too.
WITH prices AS (
  SELECT
    id,
    price,
    CASE
      WHEN ROW_NUMBER() OVER (PARTITION BY id ORDER BY __START_AT) = 1 THEN CAST('1970-01-01 00:00:00' AS TIMESTAMP)
      ELSE __START_AT
    END AS valid_from,
    __END_AT AS valid_until
  FROM products_history
)
SELECT
  c.id AS customer_id,
  COUNT(DISTINCT o.id) AS orders,
  CAST(COALESCE(SUM(i.quantity * p.price), 0) AS DECIMAL(18, 2)) AS lifetime_value
FROM customers AS c
LEFT JOIN orders AS o ON o.customer_id = c.id AND o.status <> 'cancelled'
LEFT JOIN order_items AS i ON i.order_id = o.id
LEFT JOIN prices AS p
  ON p.id = i.product_id
  AND o.created_at >= p.valid_from
  AND (p.valid_until IS NULL OR o.created_at < p.valid_until)
GROUP BY c.id
