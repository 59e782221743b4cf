<?php
// Reads each list of keys with one request over UDP, and prints the values as one JSON line per list.
// Usage: arrays.php HOST FILE-OF-LISTS
$pool = new MemcachePool();
$pool->addServer($argv[1], 11211, 11211, false, 1, 20);
foreach (file($argv[2], FILE_IGNORE_NEW_LINES) as $list) {
    echo json_encode($pool->get(explode(' ', $list)), JSON_FORCE_OBJECT), "\n";
}
