-- Policy scd1-soft, duckdb. See tests/golden/test_sql.py.

-- one key: fold
SELECT "_i", CASE WHEN v = k OR v = f THEN 'duplicate' WHEN v < k OR v < f THEN 'superseded' ELSE 'kept' END AS _outcome FROM (
SELECT "_i", row("_seq_1") AS v,
  max(row("_seq_1")) OVER (PARTITION BY "id" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS k,
  max(CASE WHEN "_op" = 't' THEN row("_seq_1") END) OVER (ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS f
FROM changes)
ORDER BY "_i";

SELECT max("_i") AS _last, CASE WHEN max_by("_op", "_i") <> 'd' THEN max(CASE WHEN "_op" = 'd' THEN "_i" WHEN "_reset" THEN "_i" - 1 END) END AS _void
FROM kept
GROUP BY "id"
ORDER BY _last;

-- one key: reconcile
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- one key: fold, values that were not sent
SELECT f._last, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", 'v'))) AS c0, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_moved") AS m, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_unsent" IS NULL) AS w, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", ''))) AS a
FROM folded AS f JOIN kept AS c ON c."id" = f."id"
GROUP BY f._last
ORDER BY f._last;

-- one key: reconcile, after a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- one key: reconcile, after deletes were forgotten
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."id" IS NULL) AND (l."id" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- one key: reconcile, after deletes were forgotten, with a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."id" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1")))) AND (l."id" IS NULL OR NOT ((l."_cdc_seq_1" > 7))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- composite key: fold
SELECT "_i", CASE WHEN v = k OR v = f THEN 'duplicate' WHEN v < k OR v < f THEN 'superseded' ELSE 'kept' END AS _outcome FROM (
SELECT "_i", row("_seq_1", "_seq_2") AS v,
  max(row("_seq_1", "_seq_2")) OVER (PARTITION BY "a", "b" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS k,
  max(CASE WHEN "_op" = 't' THEN row("_seq_1", "_seq_2") END) OVER (ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS f
FROM changes)
ORDER BY "_i";

SELECT max("_i") AS _last, CASE WHEN max_by("_op", "_i") <> 'd' THEN max(CASE WHEN "_op" = 'd' THEN "_i" WHEN "_reset" THEN "_i" - 1 END) END AS _void
FROM kept
GROUP BY "a", "b"
ORDER BY _last;

-- composite key: reconcile
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b"
ORDER BY r._row;

-- composite key: fold, values that were not sent
SELECT f._last, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", 'v'))) AS c0, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_moved") AS m, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_unsent" IS NULL) AS w, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", ''))) AS a
FROM folded AS f JOIN kept AS c ON c."a" = f."a" AND c."b" = f."b"
GROUP BY f._last
ORDER BY f._last;

-- composite key: reconcile, after a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b"
ORDER BY r._row;

-- composite key: reconcile, after deletes were forgotten
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) AND (t."a" IS NULL) AND (l."a" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b"
ORDER BY r._row;

-- composite key: reconcile, after deletes were forgotten, with a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8)) AND (t."a" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2")))) AND (l."a" IS NULL OR NOT ((l."_cdc_seq_1" > 7) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" > 8))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_2" IS NOT NULL THEN (o."b" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."b" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."a" = r."a" AND t."b" = r."b"
LEFT JOIN related AS o ON o."a" = r."_from_1" AND o."b" = r."_from_2" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2")))
LEFT JOIN tombstones AS l ON l."a" = r."a" AND l."b" = r."b"
ORDER BY r._row;

-- several sequence elements: fold
SELECT "_i", CASE WHEN v = k OR v = f THEN 'duplicate' WHEN v < k OR v < f THEN 'superseded' ELSE 'kept' END AS _outcome FROM (
SELECT "_i", row("_seq_1", "_seq_2", "_seq_3", "_seq_4") AS v,
  max(row("_seq_1", "_seq_2", "_seq_3", "_seq_4")) OVER (PARTITION BY "id" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS k,
  max(CASE WHEN "_op" = 't' THEN row("_seq_1", "_seq_2", "_seq_3", "_seq_4") END) OVER (ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS f
FROM changes)
ORDER BY "_i";

SELECT max("_i") AS _last, CASE WHEN max_by("_op", "_i") <> 'd' THEN max(CASE WHEN "_op" = 'd' THEN "_i" WHEN "_reset" THEN "_i" - 1 END) END AS _void
FROM kept
GROUP BY "id"
ORDER BY _last;

-- several sequence elements: reconcile
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- several sequence elements: fold, values that were not sent
SELECT f._last, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", 'v'))) AS c0, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_moved") AS m, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_unsent" IS NULL) AS w, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", ''))) AS a
FROM folded AS f JOIN kept AS c ON c."id" = f."id"
GROUP BY f._last
ORDER BY f._last;

-- several sequence elements: reconcile, after a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- several sequence elements: reconcile, after deletes were forgotten
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) AND (t."id" IS NULL) AND (l."id" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- several sequence elements: reconcile, after deletes were forgotten, with a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" AND r."_cdc_seq_2" = t."_cdc_seq_2" AND r."_cdc_seq_3" = t."_cdc_seq_3" AND r."_cdc_seq_4" = t."_cdc_seq_4" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" > r."_cdc_seq_2") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" > r."_cdc_seq_3") OR (t."_cdc_seq_1" = r."_cdc_seq_1" AND t."_cdc_seq_2" = r."_cdc_seq_2" AND t."_cdc_seq_3" = r."_cdc_seq_3" AND t."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" AND r."_cdc_seq_2" = l."_cdc_seq_2" AND r."_cdc_seq_3" = l."_cdc_seq_3" AND r."_cdc_seq_4" = l."_cdc_seq_4" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" > r."_cdc_seq_2") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" > r."_cdc_seq_3") OR (l."_cdc_seq_1" = r."_cdc_seq_1" AND l."_cdc_seq_2" = r."_cdc_seq_2" AND l."_cdc_seq_3" = r."_cdc_seq_3" AND l."_cdc_seq_4" > r."_cdc_seq_4")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" > 8) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" > 9) OR (r."_cdc_seq_1" = 7 AND r."_cdc_seq_2" = 8 AND r."_cdc_seq_3" = 9 AND r."_cdc_seq_4" > 10)) AND (t."id" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1") OR (7 = t."_cdc_seq_1" AND 8 > t."_cdc_seq_2") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 > t."_cdc_seq_3") OR (7 = t."_cdc_seq_1" AND 8 = t."_cdc_seq_2" AND 9 = t."_cdc_seq_3" AND 10 > t."_cdc_seq_4")))) AND (l."id" IS NULL OR NOT ((l."_cdc_seq_1" > 7) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" > 8) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" = 8 AND l."_cdc_seq_3" > 9) OR (l."_cdc_seq_1" = 7 AND l."_cdc_seq_2" = 8 AND l."_cdc_seq_3" = 9 AND l."_cdc_seq_4" > 10))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."id" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."id" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."id" = r."id"
LEFT JOIN related AS o ON o."id" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" > o."_cdc_seq_2") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" > o."_cdc_seq_3") OR (r."_cdc_seq_1" = o."_cdc_seq_1" AND r."_cdc_seq_2" = o."_cdc_seq_2" AND r."_cdc_seq_3" = o."_cdc_seq_3" AND r."_cdc_seq_4" > o."_cdc_seq_4")))
LEFT JOIN tombstones AS l ON l."id" = r."id"
ORDER BY r._row;

-- awkward name: fold
SELECT "_i", CASE WHEN v = k OR v = f THEN 'duplicate' WHEN v < k OR v < f THEN 'superseded' ELSE 'kept' END AS _outcome FROM (
SELECT "_i", row("_seq_1") AS v,
  max(row("_seq_1")) OVER (PARTITION BY "k ""1"" `2`" ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS k,
  max(CASE WHEN "_op" = 't' THEN row("_seq_1") END) OVER (ORDER BY "_i" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS f
FROM changes)
ORDER BY "_i";

SELECT max("_i") AS _last, CASE WHEN max_by("_op", "_i") <> 'd' THEN max(CASE WHEN "_op" = 'd' THEN "_i" WHEN "_reset" THEN "_i" - 1 END) END AS _void
FROM kept
GROUP BY "k ""1"" `2`"
ORDER BY _last;

-- awkward name: reconcile
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`"
ORDER BY r._row;

-- awkward name: fold, values that were not sent
SELECT f._last, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", 'v''; \DROP {b}'))) AS c0, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_moved") AS m, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", '')) AND c."_unsent" IS NULL) AS w, max(c."_i") FILTER (WHERE c."_i" > COALESCE(f._void, -1) AND (c."_unsent" IS NULL OR NOT list_contains(c."_unsent", ''))) AS a
FROM folded AS f JOIN kept AS c ON c."k ""1"" `2`" = f."k ""1"" `2`"
GROUP BY f._last
ORDER BY f._last;

-- awkward name: reconcile, after a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`"
ORDER BY r._row;

-- awkward name: reconcile, after deletes were forgotten
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."k ""1"" `2`" IS NULL) AND (l."k ""1"" `2`" IS NULL) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`"
ORDER BY r._row;

-- awkward name: reconcile, after deletes were forgotten, with a truncate
SELECT t._row AS _t, o._row AS _o,
CASE
  WHEN r."_cdc_seq_1" = t."_cdc_seq_1" THEN 'duplicate'
  WHEN ((t."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN r."_cdc_seq_1" = l."_cdc_seq_1" THEN 'duplicate'
  WHEN ((l."_cdc_seq_1" > r."_cdc_seq_1")) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) THEN 'superseded'
  WHEN NOT ((r."_cdc_seq_1" > 7)) AND (t."k ""1"" `2`" IS NULL OR NOT COALESCE(t."_cdc_deleted", FALSE) AND (t."_cdc_seq_1" IS NULL OR ((7 > t."_cdc_seq_1")))) AND (l."k ""1"" `2`" IS NULL OR NOT ((l."_cdc_seq_1" > 7))) THEN 'late'
  WHEN r."_op" <> 'd' AND r."_unsent" IS NOT NULL AND CASE WHEN r."_from_1" IS NOT NULL THEN (o."k ""1"" `2`" IS NULL OR COALESCE(o."_cdc_deleted", FALSE)) ELSE ((t."k ""1"" `2`" IS NULL OR COALESCE(t."_cdc_deleted", FALSE)) OR COALESCE(r."_reset", FALSE)) END THEN 'incomplete'
  ELSE 'apply' END AS _verdict
FROM changes AS r
LEFT JOIN related AS t ON t."k ""1"" `2`" = r."k ""1"" `2`"
LEFT JOIN related AS o ON o."k ""1"" `2`" = r."_from_1" AND (o."_cdc_seq_1" IS NULL OR ((r."_cdc_seq_1" > o."_cdc_seq_1")))
LEFT JOIN tombstones AS l ON l."k ""1"" `2`" = r."k ""1"" `2`"
ORDER BY r._row;

-- no key, counted: table public.t has no key, which policy scd1 needs
