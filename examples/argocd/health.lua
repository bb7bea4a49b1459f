-- What Argo CD makes of a RetryPipeline or a DlqReplay. The same script serves both kinds.
local function answer(status, message)
  return { status = status, message = message or "" }
end

local status = obj.status
if status == nil or status.conditions == nil then
  return answer("Progressing", "The operator has not seen it yet")
end
local conditions = {}
for _, condition in ipairs(status.conditions) do
  conditions[condition.type] = condition
end

local function holds(name)
  local condition = conditions[name]
  return condition ~= nil and condition.status == "True"
end

-- A suspended pipeline doesn't say that it has seen a generation, as it is left alone.
if holds("Suspended") then
  return answer("Suspended", conditions.Suspended.message)
end
if obj.metadata.generation ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return answer("Progressing", "The operator has not seen this generation yet")
end

-- Whether it is as it should be: what each kind calls that.
local verdict = conditions.Ready or conditions.Succeeded
if verdict == nil then
  return answer("Progressing", "Nothing is known yet")
end
if holds("Stalled") then
  return answer("Degraded", verdict.message)
end
if verdict.status == "True" then
  return answer("Healthy", verdict.message)
end
-- A second person has to act: nothing that Argo CD could wait for.
if verdict.reason == "AwaitingApproval" then
  return answer("Suspended", verdict.message)
end
-- A replay that runs, and a pipeline that is being built, are on their way.
if verdict.status == "Unknown" or verdict.reason == "Progressing" or verdict.reason == "Migrating" then
  return answer("Progressing", verdict.message)
end
return answer("Degraded", verdict.message)
