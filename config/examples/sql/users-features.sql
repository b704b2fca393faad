-- Each user beside the others of the same city. Spark SQL; the local engine runs the same file on DuckDB.
SELECT
  u.user_id,
  u.name,
  u.city,
  u.last_login,
  c.state,
  RANK() OVER (PARTITION BY u.city ORDER BY u.last_login DESC) AS last_login_rank_by_city,
  CAST(
    SUM(CASE WHEN u.last_login >= ADD_MONTHS(CAST(:reference_date AS DATE), -3) THEN 1 ELSE 0 END)
      OVER (PARTITION BY u.city) AS DOUBLE
  ) / COUNT(*) OVER (PARTITION BY u.city) AS login_rate_last_3_months_by_city,
  COUNT(*) OVER (PARTITION BY u.city) AS users_by_city
FROM users AS u
LEFT JOIN cities AS c ON c.city = u.city
