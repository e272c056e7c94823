-- Queries that Spark accepts, one in each line; see corpus.py for what they read.
SELECT * FROM orders
SELECT ID, `Customer`, Orders.AMOUNT, main.orders.day, ORDERS.`At` FROM ORDERS
SELECT sales.people.name, people.city, People.`odd name` FROM sales.people
SELECT `Meters-7`.kwh, topics.`Meters-7`.meter, _seq, _ts FROM topics.`Meters-7`
SELECT o.* FROM orders AS o
SELECT orders.*, p.* EXCEPT (`odd name`) FROM orders CROSS JOIN sales.people p
SELECT * EXCEPT (id, ITEM) FROM orders
SELECT * EXCEPT (item.size.w) FROM orders
SELECT main.orders.* FROM orders
SELECT item.* FROM orders
SELECT o.item.* FROM orders o
SELECT name, w FROM (SELECT item.*, item.size.* FROM orders)
SELECT orders.item.name, o.item.size.w, orders.item.size.h, o.item.size FROM orders, orders o
SELECT main.orders.item.size.w FROM orders
SELECT o.lines.sku, lines.n[0], lines[0].sku, props.color, props['x'], o.props.x FROM orders o
SELECT named_struct('a', 1, 'b', 2).a, struct(id AS x, v).x, (item).name FROM orders
SELECT transform(tags, t -> t || customer) FROM orders
SELECT aggregate(lines, 0, (acc, l) -> acc + l.n, acc -> acc * v) FROM orders
SELECT filter(lines, L -> l.sku = K), exists(tags, x -> x = k), zip_with(tags, tags, (a, b) -> a || b) FROM orders
SELECT transform(lines, x -> transform(sequence(1, x.n), y -> y + x.n + id)) FROM orders
SELECT map_filter(props, (key, value) -> key = value), transform_values(props, (a, b) -> b) FROM orders
SELECT array_sort(tags, (l, r) -> CASE WHEN l < r THEN -1 WHEN l > r THEN 1 ELSE 0 END) FROM orders
SELECT id AS a, a + 1 AS b, b * 2 AS c FROM orders
SELECT amount * 2 AS twice, count(*) FROM orders GROUP BY twice
SELECT day, sum(amount) AS total FROM orders GROUP BY day HAVING total > 10 ORDER BY total DESC
SELECT day AS d, sum(amount) AS total FROM orders GROUP BY 1 ORDER BY 2, d
SELECT day, count(*) FROM orders GROUP BY ALL
SELECT day, v FROM orders ORDER BY ALL
SELECT id FROM orders ORDER BY amount, item.name
SELECT id FROM orders SORT BY amount
SELECT id FROM orders CLUSTER BY k
SELECT id FROM orders DISTRIBUTE BY k SORT BY v
SELECT DISTINCT customer FROM orders ORDER BY customer
SELECT `count(1)` FROM (SELECT count(1) FROM orders)
SELECT `sum(v)` + 1 FROM (SELECT sum(v), k FROM orders GROUP BY k) WHERE k = 'a'
SELECT id FROM (SELECT CAST(id AS STRING) FROM orders)
SELECT x FROM (SELECT 1 AS x) t
SELECT t.a, b FROM (SELECT id, v FROM orders) AS t(a, b)
SELECT a, z FROM orders AS o(a, b, c, d, e, f, g, h, i, j, z)
WITH c AS (SELECT id AS n FROM orders) SELECT n, c.n, C.N FROM c
WITH c(x, y) AS (SELECT id, v FROM orders) SELECT x + y AS z FROM c
WITH a AS (SELECT id FROM orders), b AS (SELECT id AS i FROM a) SELECT b.i FROM b JOIN a ON a.id = b.i
WITH orders AS (SELECT id AS only FROM orders) SELECT only FROM orders
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT n FROM r
WITH c AS (WITH d AS (SELECT id FROM orders) SELECT id AS e FROM d) SELECT e FROM c
SELECT (WITH d AS (SELECT max(id) AS m FROM orders) SELECT m FROM d) AS biggest
SELECT id FROM orders UNION ALL SELECT age FROM sales.people ORDER BY id
SELECT id, v FROM orders UNION SELECT age, age FROM sales.people
SELECT name FROM sales.people EXCEPT SELECT customer FROM orders
SELECT name FROM sales.people INTERSECT ALL SELECT k FROM orders
(SELECT id FROM orders) UNION ALL (SELECT age FROM sales.people ORDER BY age LIMIT 1)
(SELECT id FROM orders ORDER BY amount LIMIT 3)
SELECT i FROM (SELECT id AS i FROM orders UNION ALL SELECT age FROM sales.people)
SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM sales.people p WHERE p.name = o.customer)
SELECT id FROM orders WHERE EXISTS (SELECT * FROM sales.people WHERE name = customer)
SELECT id FROM orders WHERE customer IN (SELECT name FROM sales.people WHERE age > v)
SELECT id FROM orders WHERE (k, v) IN (SELECT name, age FROM sales.people)
SELECT id, (SELECT max(age) FROM sales.people WHERE name = customer) AS oldest FROM orders
SELECT id FROM orders WHERE amount > (SELECT avg(amount) FROM orders i WHERE i.customer = orders.customer)
SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM orders i WHERE i.id = o.v AND EXISTS (SELECT 1 FROM sales.people p WHERE p.name = i.k))
SELECT a.id, b.v FROM orders a JOIN orders b ON a.id = b.id AND a.v > b.v
SELECT k, name, age FROM orders JOIN sales.people ON name = k
SELECT id, k FROM orders JOIN (SELECT name AS k, age FROM sales.people) USING (k)
SELECT o.k, p.k FROM orders o FULL JOIN (SELECT name AS k FROM sales.people) p USING (k)
SELECT * FROM orders NATURAL JOIN (SELECT name AS k FROM sales.people)
SELECT id FROM orders LEFT SEMI JOIN sales.people ON name = k
SELECT id FROM orders LEFT ANTI JOIN sales.people p ON p.name = customer
SELECT x.id, name FROM (orders x JOIN sales.people y ON x.k = y.name)
SELECT id, name FROM orders, sales.people WHERE name = k
SELECT id, name FROM orders o JOIN (sales.people p JOIN topics.`Meters-7` m ON m.meter = p.age) ON p.age = o.v
SELECT id, tag FROM orders LATERAL VIEW explode(tags) t AS tag
SELECT id, t.tag, p.key FROM orders LATERAL VIEW OUTER explode(tags) t AS tag LATERAL VIEW explode(props) p AS key, value
SELECT id, l.sku, l.n FROM orders LATERAL VIEW explode(lines) x AS l
SELECT id, sku, n FROM orders LATERAL VIEW inline(lines) x AS sku, n
SELECT id, sku, n FROM orders LATERAL VIEW inline(lines) x
SELECT id, col FROM orders LATERAL VIEW explode(tags) x
SELECT item.name, item.size.w FROM orders
SELECT explode(tags) FROM orders
SELECT col FROM (SELECT explode(tags) FROM orders)
SELECT key, value FROM (SELECT explode(props) FROM orders)
SELECT sku FROM (SELECT inline(lines) FROM orders)
SELECT p, q FROM (SELECT posexplode(tags) AS (p, q) FROM orders)
SELECT stack(2, k, customer) AS (a) FROM orders
SELECT col0, col1 FROM (SELECT stack(1, id, v) FROM orders)
SELECT f FROM orders LATERAL VIEW json_tuple(k, 'f', 'g') j AS f, g
SELECT id, e FROM orders, LATERAL explode(tags) AS t(e)
SELECT id, t.col FROM orders JOIN LATERAL explode(orders.tags) t
SELECT id, z FROM orders, LATERAL (SELECT id + v AS z)
SELECT o.id, l.z FROM orders o LEFT JOIN LATERAL (SELECT sum(age) AS z FROM sales.people p WHERE p.name = o.k) l ON true
SELECT * FROM orders PIVOT (sum(amount) AS s FOR k IN ('a' AS first, 'b'))
SELECT first, id FROM (SELECT id, k, v FROM orders) PIVOT (max(v) FOR k IN ('a' AS first, 'b' AS second))
SELECT first_total FROM (SELECT k, v FROM orders) PIVOT (sum(v) AS total, max(v) AS top FOR k IN ('a' AS first, 'b' AS second))
SELECT id, which, what FROM (SELECT id, k, customer FROM orders) UNPIVOT (what FOR which IN (k, customer))
SELECT id, year(at), extract(YEAR FROM at), date_part('day', at), extract(dow FROM day) FROM orders
SELECT timestampadd(HOUR, 1, at), timestampdiff(MONTH, at, at), dateadd(DAY, 1, day), datediff(WEEK, day, day) FROM orders
SELECT date_diff(QUARTER, day, day), date_add(MINUTE, 1, at), timestampadd(MICROSECOND, 1, at) FROM orders
SELECT at + INTERVAL 1 DAY, at - INTERVAL '1-2' YEAR TO MONTH, make_interval(0, v) + at FROM orders
SELECT current_date, current_timestamp, current_user, current_time FROM orders
SELECT current_date(), now(), current_database(), localtimestamp() FROM orders
SELECT mask(k, lowerChar => 'q', upperChar => 'Q') FROM orders
SELECT row_number() OVER w, sum(v) OVER (PARTITION BY k ORDER BY at ROWS UNBOUNDED PRECEDING) FROM orders WINDOW w AS (PARTITION BY k ORDER BY at)
SELECT id, lag(v, 1) OVER (PARTITION BY customer ORDER BY at) AS before, v - before AS change FROM orders
SELECT sum(v) FILTER (WHERE k = 'a'), percentile_cont(0.5) WITHIN GROUP (ORDER BY v) FROM orders
SELECT k, grouping(k), grouping_id(k, v), sum(v) FROM orders GROUP BY k, v WITH CUBE
SELECT k, v, count(*) FROM orders GROUP BY GROUPING SETS ((k, v), (k), ())
SELECT k, count(*) FROM orders GROUP BY ROLLUP (k)
SELECT x, y + 1 AS z FROM VALUES (1, 2), (3, 4) AS t(x, y)
SELECT col1, col2 FROM VALUES (1, 'a')
SELECT t.col1 FROM VALUES (1, 'a') t
SELECT a FROM (VALUES (1), (2)) t(a)
SELECT id FROM range(10)
SELECT r.id FROM range(0, 10, 2) r
SELECT n FROM range(3) AS r(n)
SELECT e FROM explode(array(1, 2)) AS t(e)
SELECT col FROM explode(array(1, 2))
SELECT * FROM orders TABLESAMPLE (10 PERCENT)
SELECT s.id FROM orders TABLESAMPLE (5 ROWS) s
SELECT /*+ BROADCAST(o), REPARTITION(3) */ o.id FROM orders o JOIN sales.people p ON p.name = o.k
SELECT /*+ SHUFFLE_HASH(x) */ id FROM orders x
FROM orders SELECT id, v
FROM orders |> WHERE v > 1 |> SELECT id AS i, v |> WHERE i > 2
FROM orders |> AGGREGATE sum(v) AS total GROUP BY k |> ORDER BY total
FROM orders |> EXTEND v + 1 AS w |> SELECT w
SELECT id::STRING, CAST(v AS BIGINT), try_cast(k AS INT), k RLIKE 'a.*', k LIKE ANY ('a', 'b') FROM orders
SELECT CASE k WHEN 'a' THEN v ELSE -v END, CASE WHEN v > 1 THEN id END, if(v > 1, k, customer), nvl2(k, v, id) FROM orders
SELECT coalesce(k, customer), nullif(k, 'a'), v BETWEEN 1 AND id, k IS NOT DISTINCT FROM customer, NOT v <=> id FROM orders
SELECT trim(BOTH 'x' FROM k), substring(k FROM 1 FOR 2), position('a' IN k), overlay(k PLACING 'x' FROM 1) FROM orders
SELECT count(DISTINCT k, v), first_value(k) IGNORE NULLS, max_by(k, v), collect_list(struct(id, k)) FROM orders
SELECT `User`, user FROM sales.people
SELECT x.y.z FROM (SELECT named_struct('y', named_struct('z', 1)) AS x)
SELECT x.y.z.w FROM (SELECT named_struct('y', named_struct('z', named_struct('w', 1))) AS x)
SELECT t.x.y.z.w FROM (SELECT named_struct('y', named_struct('z', named_struct('w', 1))) AS x) t
SELECT from_json(k, 'a INT, b STRING').a, to_json(item), get_json_object(k, '$.x') FROM orders
SELECT id, session_window.start FROM orders GROUP BY id, session_window(at, '5 minutes')
SELECT window(at, '5 minutes').start AS s, count(*) FROM orders GROUP BY s
SELECT 1
SELECT 1 AS one WHERE 1 = 1
SELECT count(*) FROM orders, sales.people
SELECT max(id) AS m FROM orders HAVING m > 1
SELECT k FROM orders GROUP BY k HAVING sum(v) > 1 AND max(amount) < 5 ORDER BY k
SELECT k FROM orders GROUP BY k ORDER BY sum(v), k
SELECT id FROM orders QUALIFY row_number() OVER (ORDER BY v) = 1
SELECT id AS n FROM orders QUALIFY row_number() OVER (PARTITION BY k ORDER BY n) = 1
SELECT t.* FROM (SELECT o.*, p.age FROM orders o JOIN sales.people p ON p.name = o.k) t WHERE t.age > 1 AND t.item.name = 'x'
SELECT customer FROM (SELECT * FROM (SELECT * FROM (SELECT * FROM orders)))
SELECT a.name FROM (SELECT item AS a FROM orders) x LATERAL VIEW explode(array(a.size.w)) y AS b2 WHERE a.name = 'x' AND b2 > 1 AND true OR a.name IS NULL OR (SELECT true) OR x.a.size.h > 0 OR named_struct('b', 1).b = 1 GROUP BY a.name, a HAVING a.name = 'x'
SELECT inline(arrays_zip(tags, tags)) FROM orders
SELECT map_keys(props)[0], element_at(tags, 1), size(lines), cardinality(props) FROM orders
SELECT sum(sum(v)) OVER (PARTITION BY k) FROM orders GROUP BY k
SELECT id FROM orders WHERE v IN (1, 2) OR k IN (SELECT name FROM sales.people) LIMIT 5 OFFSET 2
SELECT id FROM orders LIMIT ALL
SELECT ALL id FROM orders
SELECT 'a' 'b' AS ab, x'1F', 1L, 2.0BD, 1e3, DATE'2020-01-01', TIMESTAMP'2020-01-01 00:00:00', INTERVAL '1' DAY
SELECT ifnull(k, 'x') AS `a.b` FROM orders ORDER BY `a.b`
SELECT `a.b` FROM (SELECT k AS `a.b` FROM orders)
