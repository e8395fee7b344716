-- Retention, the repair of indexes, and the list of tenants.

-- Removes some expired entries of each kind; returns whether more may be left, and the end of the first lease.
-- `is_whole` if indexes are repaired as well.
function methods.purge()
  frees_memory()
  local keep_waiting, keep_ended, keep_effects, keep_keys, is_whole = take(5)
  keep_ended, keep_effects = tonumber(keep_ended), tonumber(keep_effects)
  local more = end_overdue(tonumber(keep_waiting))
  if keep_ended then
    local members = call('ZRANGEBYSCORE', base .. ':e', '-inf', text(now - keep_ended), 'LIMIT', 0, BATCH)
    for _, member in ipairs(members) do
      local T, R = names(member)
      local run = run_open(T, R)
      if run and run.status == 'ended' and run.since <= now - keep_ended then
        run_remove(run)
      elseif run then
        run_indexed(run)
      else
        run_unindexed(T, R)
      end
    end
    more = more or #members == BATCH
  end

  -- The time of an effect without a run begins when a purge sees it first.
  local unseen = call('SPOP', base .. ':fu', 4 * BATCH)
  for _, effect in ipairs(unseen) do
    call('ZADD', base .. ':fn', text(now), effect)
  end
  more = more or #unseen == 4 * BATCH
  if keep_effects then
    local effects = call('ZRANGEBYSCORE', base .. ':fn', '-inf', text(now - keep_effects), 'LIMIT', 0, 4 * BATCH)
    for _, effect in ipairs(effects) do
      call('UNLINK', base .. ':f:' .. effect)
      call('ZREM', base .. ':fn', effect)
    end
    more = more or #effects == 4 * BATCH
  end

  -- Examines only the first expired keys: most may be too recent to be removed.
  local used = tonumber(call('GET', base .. ':un') or 0)
  local removed = 0
  for _, name in ipairs(call('ZRANGEBYSCORE', base .. ':uz', '-inf', text(now), 'LIMIT', 0, 4 * BATCH)) do
    local value = call('HGET', base .. ':u', name)
    -- After the id of the attempt, which has 32 characters.
    if not value or tonumber(string.sub(value, 33)) <= used - tonumber(keep_keys) then
      call('HDEL', base .. ':u', name)
      call('ZREM', base .. ':uz', name)
      removed = removed + 1
    end
  end
  more = more or removed == 4 * BATCH

  local cached = call('ZRANGEBYSCORE', base .. ':vz', '-inf', text(now), 'LIMIT', 0, 4 * BATCH)
  for _, member in ipairs(cached) do
    cache_remove(member)
  end
  more = more or #cached == 4 * BATCH

  more = events_expire() or more

  local deleted = call('ZRANGEBYSCORE', base .. ':y', '-inf', text(now - REMEMBERED * 1000000), 'LIMIT', 0, 4 * BATCH)
  for _, name in ipairs(deleted) do
    call('ZREM', base .. ':y', name)
  end
  more = more or #deleted == 4 * BATCH

  if is_whole == '1' and not more then
    local part = call('ZSCAN', base .. ':x', call('GET', base .. ':xc') or '0', 'COUNT', 100)
    call('SET', base .. ':xc', part[1])
    for at = 1, #part[2], 2 do
      local T, R = names(part[2][at])
      local run = run_open(T, R)
      if run then
        -- Not that of quarantined runs, which is made as they are found.
        if not call('ZSCORE', base .. ':z', part[2][at]) then
          run_indexed(run)
        end
      else
        run_unindexed(T, R)
      end
    end
  end
  return {'ok', more and 1 or 0, call('ZRANGE', base .. ':l', 0, 0, 'WITHSCORES')[2] or 'inf'}
end

-- The keys of a tenant that are left when it has no entries, except those that expire.
local OF_TENANT = {':i', ':l', ':z', ':w', ':e', ':x', ':xc', ':k', ':tz', ':u', ':uz', ':un', ':fu', ':fn', ':dz', ':vz',
  ':vb', ':mo', ':lb', ':le', ':lo', ':ld'}

-- The seconds for which the counter of a deleted tenant is kept. Later versions are greater without it.
local COUNTED = 3600

-- Deletes some of the entries of a tenant. Returns the number of conversations among them, and whether more entries
-- may be left.
function methods.tenant_delete()
  frees_memory()
  local conversations, has_deleted = 0, false
  local runs = call('ZRANGE', base .. ':x', 0, BATCH - 1)
  for _, member in ipairs(runs) do
    local T, R = names(member)
    local run = run_open(T, R)
    if run then
      run_delete(run)
    else
      run_unindexed(T, R)
    end
    has_deleted = true
  end
  if #runs < BATCH then
    for _, name in ipairs(call('ZRANGE', base .. ':tz', 0, 9)) do
      conversations = conversations + thread_remove(escape(name), name)
      has_deleted = true
    end
  end
  for _, id in ipairs(call('ZRANGE', base .. ':dz', 0, 4 * BATCH - 1)) do
    decision_remove(id)
    has_deleted = true
  end
  for _, member in ipairs(call('ZRANGE', base .. ':vz', 0, 4 * BATCH - 1)) do
    cache_remove(member)
    has_deleted = true
  end
  has_deleted = events_remove_all() or has_deleted
  for _, effect in ipairs(call('SPOP', base .. ':fu', 4 * BATCH)) do
    call('UNLINK', base .. ':f:' .. effect)
    has_deleted = true
  end
  for _, effect in ipairs(call('ZRANGE', base .. ':fn', 0, 4 * BATCH - 1)) do
    call('UNLINK', base .. ':f:' .. effect)
    call('ZREM', base .. ':fn', effect)
    has_deleted = true
  end
  for _, owner in ipairs(call('SPOP', base .. ':mo', 4 * BATCH)) do
    call('UNLINK', base .. ':m:' .. owner, base .. ':mz:' .. owner)
    has_deleted = true
  end
  if not has_deleted then
    for _, key in ipairs(OF_TENANT) do
      call('UNLINK', base .. key)
    end
    call('EXPIRE', base .. ':n', COUNTED)
  end
  return {'ok', conversations, has_deleted and 1 or 0}
end

-- The end of the first lease of a tenant.
function methods.first_lease()
  return {'ok', call('ZRANGE', base .. ':l', 0, 0, 'WITHSCORES')[2] or 'inf'}
end

-- How many seconds the time of a tenant is not raised after it was listed: a write that follows may take so long.
local FRESH = 60

-- Puts a tenant into the list, with a time that is not later than `deadline`.
function methods.list_add()
  local tenant, deadline = take(2)
  call('ZADD', base .. ':due', 'LT', deadline, tenant)
  call('HSET', base .. ':fresh', tenant, call('TIME')[1])
  return {'ok'}
end

-- Sets the time of a tenant to `deadline`, the end of its first lease, unless it was removed in between.
function methods.list_set()
  frees_memory()
  local tenant, deadline = take(2)
  local fresh = call('HGET', base .. ':fresh', tenant)
  if fresh and tonumber(call('TIME')[1]) < tonumber(fresh) + FRESH then
    call('ZADD', base .. ':due', 'XX', 'LT', deadline, tenant)
  else
    call('HDEL', base .. ':fresh', tenant)
    call('ZADD', base .. ':due', 'XX', deadline, tenant)
  end
  return {'ok'}
end

-- Puts a tenant behind all others whose leases have ended.
function methods.list_put_off()
  frees_memory()
  call('ZADD', base .. ':due', 'XX', text(now), (take(1)))
  return {'ok'}
end

-- Removes a tenant from the list.
function methods.list_remove()
  frees_memory()
  local tenant = take(1)
  call('ZREM', base .. ':due', tenant)
  call('HDEL', base .. ':fresh', tenant)
  return {'ok'}
end

-- The tenants that may have runs whose leases have ended.
function methods.list_due()
  return {'ok', call('ZRANGEBYSCORE', base .. ':due', '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, (take(1)))}
end

-- Some of all tenants.
function methods.list_scan()
  local part = call('ZSCAN', base .. ':due', (take(1)), 'COUNT', 100)
  return {'ok', part[1], part[2]}
end

-- Marks the keys as those of this store. `code` is 'ok', 'foreign', or 'newer' and the version.
function methods.mark()
  local version = take(1)
  local kind = call('TYPE', base).ok
  if kind ~= 'hash' and kind ~= 'none' then
    return {'foreign'}
  end
  local f = call('HMGET', base, 'application', 'version')
  if kind == 'none' then
    call('HSET', base, 'application', 'concentric', 'version', version)
  elseif f[1] ~= 'concentric' then
    return {'foreign'}
  elseif tonumber(f[2]) > tonumber(version) then
    return {'newer', tonumber(f[2])}
  end
  return {'ok'}
end

local answer = methods[ARGV[1]]()
-- The caller repeats this call after that answer, and stages turns again after others.
if staged and answer[1] ~= 'unlisted' then
  call('UNLINK', staged)
end
return answer
