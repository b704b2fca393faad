SELECT
  ordered_on AS day,
  customer_id,
  COUNT(*) AS orders,
  CAST(SUM(total_amount) AS DECIMAL(18, 2)) AS revenue
FROM orders
WHERE status <> 'cancelled'
GROUP BY ordered_on, customer_id
