-- The customers as their events leave them. A deleted one is in no row.
SELECT
  aggregate_id AS customer_id,
  MAX_BY(event_data['name'], event_version) FILTER (WHERE event_data['name'] IS NOT NULL) AS name,
  MAX_BY(COALESCE(event_data['new_email'], event_data['email']), event_version)
    FILTER (WHERE COALESCE(event_data['new_email'], event_data['email']) IS NOT NULL) AS email,
  MAX_BY(COALESCE(event_data['new_city'], event_data['city']), event_version)
    FILTER (WHERE COALESCE(event_data['new_city'], event_data['city']) IS NOT NULL) AS city,
  COUNT(*) AS total_events,
  MAX(event_version) AS version
FROM events
WHERE aggregate_type = 'Customer'
GROUP BY aggregate_id
HAVING MAX_BY(event_type, event_version) <> 'CustomerDeleted'
