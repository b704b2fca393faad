-- How many orders of a day have come to which status, and how many of all that is.
SELECT
  ordered_on AS day,
  status,
  COUNT(*) AS orders,
  CAST(COUNT(*) AS DOUBLE) / SUM(COUNT(*)) OVER (PARTITION BY ordered_on) AS share_of_day
FROM orders
GROUP BY ordered_on, status
